// Package memsnap keeps snapshots of machines: their format on disk and the template memory that all
// clones of one snapshot share. A template's memory lives in one memfd; each clone maps it MAP_PRIVATE, so
// that only the pages a clone writes cost memory of their own.
package memsnap
