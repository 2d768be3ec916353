// Package reports defines result.json, the only source of every figure that the project states, and renders
// it: report.md for a pull request, report.html as a single page, and one .hgrm file per histogram.
//
//	bench ──Series──▶ Result ──Write──▶ result.json ──Load, Validate──▶ WriteAll: md, html, hgrm
//	                                        │
//	                                        └── Compare(base, head): same host class and clock, or refused
//
// The page's drawings are SVG written here, not plots of gonum/plot: text stays text, colours come from the
// page's own style sheet (so light and dark both read), and nothing but the standard library is linked.
package reports
