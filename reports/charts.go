package reports

import (
	"fmt"
	"html/template"
	"math"
)

// Sizes of the pictures, in SVG units; the page scales them to its width.
const (
	chartWidth = 760
	labelWidth = 128 // names left of bars
	valueWidth = 150 // figures right of bars
	rowHeight  = 34
	axisHeight = 26
)

// armClass gives an arm its colour, the same in every picture.
func armClass(arm string) string {
	switch arm {
	case "cella", "crun", "qemu-microvm", "runsc", "firecracker":
		return "arm-" + arm
	}
	return "arm-other"
}

// bars puts the arms of one scenario beside each other: solid to the median, pale to p95 or, where that is
// not stated, to the slowest.
func bars(group []*Scenario) template.HTML {
	d := newDrawing(chartWidth, float64(len(group)*rowHeight+axisHeight), group[0].Name+" by arm")
	hi := 0.0
	for _, s := range group {
		tail, _ := tailOf(s)
		hi = max(hi, float64(tail))
	}
	x := scale{lo: 0, hi: hi, from: labelWidth, to: chartWidth - valueWidth}
	bottom := float64(len(group) * rowHeight)
	for _, v := range x.ticks(5) {
		d.line(x.at(v), 2, x.at(v), bottom, "grid")
		d.text(x.at(v), bottom+16, "middle", "tick", tickNS(v))
	}
	for i, s := range group {
		y := float64(i*rowHeight) + 7
		class := armClass(s.Params.Arm)
		d.text(labelWidth-10, y+15, "end", "name", s.Params.Arm)
		tail, tailName := tailOf(s)
		d.rect(x.from, y+3, x.at(float64(tail))-x.from, 14, class+" pale")
		label := fmt.Sprintf("%s %s", tailName, FormatNS(tail))
		if p50, ok := s.Quantile("50"); ok {
			d.rect(x.from, y, x.at(float64(p50))-x.from, 20, class)
			label = fmt.Sprintf("%s · %s", FormatNS(p50), label)
		}
		d.text(chartWidth-valueWidth+8, y+15, "start", "value", label)
	}
	return d.html()
}

// tailOf is p95 where it is stated, and otherwise the slowest.
func tailOf(s *Scenario) (ns int64, name string) {
	if v, ok := s.Quantile("95"); ok {
		return v, "p95"
	}
	return s.Max, "max"
}

// waterfall shows the phases one after the other; their means sum to the mean of the total.
func waterfall(s *Scenario) template.HTML {
	names := s.OrderedPhases()
	d := newDrawing(chartWidth, float64((len(names)+1)*28+axisHeight), s.Name+" by phase")
	x := scale{lo: 0, hi: s.Mean, from: labelWidth, to: chartWidth - valueWidth}
	bottom := float64((len(names) + 1) * 28)
	for _, v := range x.ticks(5) {
		d.line(x.at(v), 2, x.at(v), bottom, "grid")
		d.text(x.at(v), bottom+16, "middle", "tick", tickNS(v))
	}
	begin := 0.0
	row := func(i int, name string, from, length float64, class string) {
		y := float64(i*28) + 4
		d.text(labelWidth-10, y+14, "end", "name", name)
		d.rect(x.at(from), y, x.at(from+length)-x.at(from), 18, class)
		share := 100 * length / s.Mean
		d.text(chartWidth-valueWidth+8, y+14, "start", "value", fmt.Sprintf("%s · %.1f %%", FormatNS(int64(length)), share))
	}
	for i, name := range names {
		row(i, name, begin, s.Phases[name].Mean, fmt.Sprintf("%s shade%d", armClass(s.Params.Arm), i%2))
		begin += s.Phases[name].Mean
	}
	row(len(names), "total", 0, s.Mean, "total")
	return d.html()
}

// Margins of the pictures with two axes.
const (
	plotLeft, plotRight, plotTop, plotBottom = 74.0, 150.0, 12.0, 40.0
	plotHeight                               = 280.0
)

// spectrum draws latency over the percentile, on an axis that gives each nine the same room. Beyond the
// last percentile with ten samples behind it the line is pale: those points are single runs.
func spectrum(group []*Scenario) template.HTML {
	d := newDrawing(chartWidth, plotHeight, group[0].Name+" percentile spectrum")
	maxN, lo, hi := 2, math.Inf(1), 0.0
	for _, s := range group {
		maxN, lo, hi = max(maxN, s.N), min(lo, float64(s.Min)), max(hi, float64(s.Max))
	}
	x := scale{lo: 1, hi: float64(maxN), from: plotLeft, to: chartWidth - plotRight, log: true}
	y := latencyScale(lo, hi)
	for _, p := range []float64{0, 50, 90, 99, 99.9, 99.99} {
		if beyond := 100 / (100 - p); beyond <= x.hi {
			d.line(x.at(beyond), plotTop, x.at(beyond), y.from, "grid")
			d.text(x.at(beyond), y.from+16, "middle", "tick", fmt.Sprintf("p%g", p))
		}
	}
	latencyAxis(d, y)
	var labels []label
	for _, s := range group {
		labels = append(labels, spectrumLine(d, s, x, y)...)
	}
	placeLabels(d, labels)
	return d.html()
}

// latencyScale is linear from 0, or logarithmic where the extremes are far apart.
func latencyScale(lo, hi float64) scale {
	y := scale{lo: 0, hi: hi * 1.04, from: plotHeight - plotBottom, to: plotTop}
	if lo > 0 && hi/lo > 12 {
		y.log, y.lo, y.hi = true, lo/1.15, hi*1.15
	}
	return y
}

func latencyAxis(d *drawing, y scale) {
	for _, v := range y.ticks(5) {
		d.line(plotLeft, y.at(v), chartWidth-plotRight, y.at(v), "grid")
		d.text(plotLeft-8, y.at(v)+4, "end", "tick", tickNS(v))
	}
}

// label is a name at the right edge of a line.
type label struct {
	x, y        float64
	text, class string
}

func spectrumLine(d *drawing, s *Scenario, x, y scale) []label {
	h, err := s.Histogram()
	if err != nil || h == nil {
		return nil
	}
	var sound, single [][2]float64
	ok := h.TotalCount()
	for _, rank := range ranks(ok) {
		// A rank's place counts the failures as slower than any success.
		beyond := float64(s.N) / float64(int64(s.N)-rank+1)
		point := [2]float64{x.at(beyond), y.at(float64(min(valueAtRank(h, rank), s.Max)))}
		if int64(s.N)-rank >= minBeyond || rank <= (ok+1)/2 {
			sound = append(sound, point)
			continue
		}
		if len(single) == 0 && len(sound) > 0 {
			single = append(single, sound[len(sound)-1])
		}
		single = append(single, point)
	}
	class := armClass(s.Params.Arm) + " curve"
	d.path(sound, class)
	end := sound[len(sound)-1]
	if len(single) > 0 {
		d.path(single, class+" single")
		end = single[len(single)-1]
	}
	return []label{{end[0] + 8, end[1] + 4, s.Params.Arm, armClass(s.Params.Arm) + " name"}}
}

// ranks picks about a hundred ranks of n, denser towards the slowest.
func ranks(n int64) []int64 {
	var out []int64
	for i := range 101 {
		beyond := math.Pow(float64(n), 1-float64(i)/100)
		rank := min(max(n-int64(math.Round(beyond))+1, 1), n)
		if len(out) == 0 || rank > out[len(out)-1] {
			out = append(out, rank)
		}
	}
	return out
}

// placeLabels keeps labels apart that would cover each other.
func placeLabels(d *drawing, labels []label) {
	for i := range labels {
		for j := range i {
			if math.Abs(labels[i].y-labels[j].y) < 14 && math.Abs(labels[i].x-labels[j].x) < 110 {
				labels[i].y = labels[j].y - 14
			}
		}
		d.text(labels[i].x, labels[i].y, "start", labels[i].class, labels[i].text)
	}
}

// densityChart draws memory used over the number of sandboxes, and the fitted line with its slope.
func densityChart(s *Scenario) template.HTML {
	points := s.Curves["used_bytes"]
	d := newDrawing(chartWidth, plotHeight, "memory used by idle sandboxes")
	slope, intercept := s.Values["slope_bytes"], s.Values["intercept_bytes"]
	maxX, maxY := 1.0, 1.0
	for _, p := range points {
		maxX, maxY = max(maxX, p.X), max(maxY, p.Y, intercept+slope*p.X)
	}
	x := scale{lo: 0, hi: maxX, from: plotLeft, to: chartWidth - plotRight}
	y := scale{lo: 0, hi: maxY * 1.05, from: plotHeight - plotBottom, to: plotTop}
	for _, v := range x.ticks(8) {
		d.line(x.at(v), plotTop, x.at(v), y.from, "grid")
		d.text(x.at(v), y.from+16, "middle", "tick", fmt.Sprintf("%g", v))
	}
	d.text(x.to, y.from+33, "end", "tick", "idle sandboxes")
	for _, v := range y.ticks(5) {
		d.line(plotLeft, y.at(v), chartWidth-plotRight, y.at(v), "grid")
		d.text(plotLeft-8, y.at(v)+4, "end", "tick", tickBytes(v))
	}
	class := armClass(s.Params.Arm)
	d.path([][2]float64{{x.at(0), y.at(max(intercept, 0))}, {x.at(maxX), y.at(intercept + slope*maxX)}}, class+" curve")
	for _, p := range points {
		d.circle(x.at(p.X), y.at(max(p.Y, 0)), 4, class+" dot")
	}
	end := y.at(intercept + slope*maxX)
	d.text(x.to+10, end+4, "start", class+" name", FormatBytes(slope))
	d.text(x.to+10, end+20, "start", "tick", "a sandbox")
	return d.html()
}
