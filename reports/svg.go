package reports

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// drawing builds one inline SVG. Colours and fonts are classes of the page's style sheet.
type drawing struct {
	b             strings.Builder
	width, height float64
}

// newDrawing starts a picture; title is what a screen reader says.
func newDrawing(width, height float64, title string) *drawing {
	d := &drawing{width: width, height: height}
	fmt.Fprintf(&d.b, `<svg viewBox="0 0 %s %s" role="img" aria-label="%s">`, num(width), num(height), html.EscapeString(title))
	return d
}

func (d *drawing) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(&d.b, `<rect x="%s" y="%s" width="%s" height="%s" rx="2" class="%s"/>`, num(x), num(y), num(max(w, 0.5)), num(h), class)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, num(x1), num(y1), num(x2), num(y2), class)
}

func (d *drawing) circle(x, y, r float64, class string) {
	fmt.Fprintf(&d.b, `<circle cx="%s" cy="%s" r="%s" class="%s"/>`, num(x), num(y), num(r), class)
}

func (d *drawing) path(points [][2]float64, class string) {
	d.b.WriteString(`<path d="`)
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&d.b, "%s%s %s", command, num(p[0]), num(p[1]))
	}
	fmt.Fprintf(&d.b, `" class="%s"/>`, class)
}

// text writes at a baseline; anchor is start, middle or end.
func (d *drawing) text(x, y float64, anchor, class, s string) {
	fmt.Fprintf(&d.b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, num(x), num(y), anchor, class, html.EscapeString(s))
}

// html ends the picture. Everything in it was escaped on its way in.
func (d *drawing) html() template.HTML {
	d.b.WriteString("</svg>")
	return template.HTML(d.b.String())
}

func num(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
}

// scale maps values onto a length, linearly or by logarithm.
type scale struct {
	lo, hi   float64 // values
	from, to float64 // positions
	log      bool
}

func (s scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		v, lo, hi = math.Log(max(v, s.lo)), math.Log(lo), math.Log(hi)
	}
	if hi == lo {
		return s.from
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// ticks are round values within the scale: 1, 2 and 5 of each decade, or steps of such a size.
func (s scale) ticks(about int) []float64 {
	var out []float64
	if s.log {
		for decade := math.Pow(10, math.Floor(math.Log10(s.lo))); decade <= s.hi; decade *= 10 {
			for _, m := range []float64{1, 2, 5} {
				if v := m * decade; v >= s.lo && v <= s.hi {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := roundStep((s.hi - s.lo) / float64(about))
	if step <= 0 {
		return nil
	}
	for v := math.Ceil(s.lo/step) * step; v <= s.hi*(1+1e-9); v += step {
		out = append(out, v)
	}
	return out
}

// roundStep is the smallest of 1, 2, 5 × 10ⁿ that is at least v.
func roundStep(v float64) float64 {
	if v <= 0 {
		return 0
	}
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*decade >= v*(1-1e-9) {
			return m * decade
		}
	}
	return 10 * decade
}
