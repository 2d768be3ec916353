// Package reports defines result.json, the only source of every figure, and renders it.
package reports
