package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/node"
)

// agentMetrics is the agent's answer to GET /metrics. It comes from the guest: hostile input.
type agentMetrics struct {
	Timestamp  int64   `json:"ts"`
	CPUCount   int     `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"`
	MemTotal   uint64  `json:"mem_total"`
	MemUsed    uint64  `json:"mem_used"`
	MemCache   uint64  `json:"mem_cache"`
	DiskUsed   uint64  `json:"disk_used"`
	DiskTotal  uint64  `json:"disk_total"`
}

// sandboxMetric is the contract's; sizes are in bytes.
type sandboxMetric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       uint64    `json:"memUsed"`
	MemTotal      uint64    `json:"memTotal"`
	MemCache      uint64    `json:"memCache"`
	DiskUsed      uint64    `json:"diskUsed"`
	DiskTotal     uint64    `json:"diskTotal"`
}

const (
	// metricsTime bounds the wait for an agent's metrics.
	metricsTime = 5 * time.Second
	// metricsBytes bounds its answer.
	metricsBytes = 64 << 10
	// maxManyMetrics is how many sandboxes one call may ask about.
	maxManyMetrics = 100
)

// sandboxMetrics answers with the present sample: no history is kept.
func sandboxMetrics(s *Server, r *request) error {
	start, end, err := metricsRange(r.RequestCtx)
	if err != nil {
		return err
	}
	sb, err := s.own(r)
	if err != nil {
		return err
	}
	list := []sandboxMetric{}
	if sb.State == node.StateRunning {
		m, err := s.askMetrics(sb)
		if err != nil {
			return err
		}
		if m.TimestampUnix >= start && m.TimestampUnix <= end {
			list = append(list, m)
		}
	}
	writeJSON(r.RequestCtx, fasthttp.StatusOK, list)
	return nil
}

func metricsRange(ctx *fasthttp.RequestCtx) (start, end int64, err error) {
	end = 1<<63 - 1
	for name, to := range map[string]*int64{"start": &start, "end": &end} {
		raw := ctx.QueryArgs().Peek(name)
		if len(raw) == 0 {
			continue
		}
		if *to, err = strconv.ParseInt(string(raw), 10, 64); err != nil || *to < 0 {
			return 0, 0, errorf(fasthttp.StatusBadRequest, "%s: must be a Unix time in seconds, not %q", name, clip(string(raw), 60))
		}
	}
	if start > end {
		return 0, 0, errorf(fasthttp.StatusBadRequest, "start: is after end")
	}
	return start, end, nil
}

// manyMetrics answers for each asked sandbox that is the caller's and answers itself.
func manyMetrics(s *Server, r *request) error {
	ids := strings.Split(string(r.QueryArgs().Peek("sandbox_ids")), ",")
	if len(ids) > maxManyMetrics {
		return errorf(fasthttp.StatusBadRequest, "sandbox_ids: at most %d", maxManyMetrics)
	}
	found := map[string]sandboxMetric{}
	for _, id := range ids {
		sb, err := s.node.Get(sandboxID(id))
		if err != nil || sb.Team != r.team || sb.State != node.StateRunning {
			continue
		}
		if m, err := s.askMetrics(sb); err == nil {
			found[sb.ID] = m
		}
	}
	writeJSON(r.RequestCtx, fasthttp.StatusOK, map[string]any{"sandboxes": found})
	return nil
}

// askMetrics asks the sandbox's agent.
func (s *Server) askMetrics(sb node.Sandbox) (sandboxMetric, error) {
	l, err := s.upstreams.take(target{id: sb.ID, port: wire.PortAgent}, false)
	if err != nil {
		return sandboxMetric{}, err
	}
	m, err := l.getMetrics(sb.AccessToken)
	l.release(false)
	if err != nil {
		return sandboxMetric{}, errorf(fasthttp.StatusServiceUnavailable, "sandbox %q gave no metrics: %s", sb.ID, clip(err.Error(), 200))
	}
	return sandboxMetric{
		Timestamp: time.Unix(m.Timestamp, 0).UTC(), TimestampUnix: m.Timestamp,
		CPUCount: m.CPUCount, CPUUsedPct: m.CPUUsedPct,
		MemUsed: m.MemUsed, MemTotal: m.MemTotal, MemCache: m.MemCache,
		DiskUsed: m.DiskUsed, DiskTotal: m.DiskTotal,
	}, nil
}

func (l *link) getMetrics(token string) (agentMetrics, error) {
	l.conn.SetDeadline(time.Now().Add(metricsTime))
	l.w.WriteString("GET /metrics HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n")
	if token != "" {
		l.w.WriteString("X-Access-Token: " + token + "\r\n")
	}
	l.w.WriteString("\r\n")
	if err := l.w.Flush(); err != nil {
		return agentMetrics{}, err
	}
	var resp fasthttp.Response
	if err := resp.ReadLimitBody(l.r, metricsBytes); err != nil {
		return agentMetrics{}, err
	}
	if resp.StatusCode() != fasthttp.StatusOK {
		return agentMetrics{}, errorf(resp.StatusCode(), "the agent refused")
	}
	var m agentMetrics
	err := json.NewDecoder(io.LimitReader(bytes.NewReader(resp.Body()), metricsBytes)).Decode(&m)
	return m, err
}
