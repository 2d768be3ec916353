package gateway

import (
	"encoding/base64"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

// maxPage is the most sandboxes one answer lists.
const maxPage = 100

// listQuery is a parsed sandbox list request.
type listQuery struct {
	metadata     map[string]string
	states       map[node.State]bool
	template     string
	startedAfter time.Time
	ascending    bool
	limit        int
	after        *cursor
}

// cursor is where a page ended: the start time and ID of its last sandbox.
type cursor struct {
	startedAt time.Time
	id        string
}

// listV1 is the deprecated list: running sandboxes, unpaged.
func listV1(s *Server, r *request) error {
	q, err := parseListQuery(r.RequestCtx)
	if err != nil {
		return err
	}
	q.states = map[node.State]bool{node.StateRunning: true}
	writeJSON(r.RequestCtx, fasthttp.StatusOK, listedAll(s.matching(r.team, q)))
	return nil
}

func listV2(s *Server, r *request) error {
	q, err := parseListQuery(r.RequestCtx)
	if err != nil {
		return err
	}
	all := s.matching(r.team, q)
	running := 0
	for _, sb := range all {
		if sb.State == node.StateRunning {
			running++
		}
	}
	page, more := q.page(all)
	if more {
		r.Response.Header.Set("X-Next-Token", q.token(page[len(page)-1]))
	}
	r.Response.Header.Set("X-Total-Running", strconv.Itoa(running))
	writeJSON(r.RequestCtx, fasthttp.StatusOK, listedAll(page))
	return nil
}

func listedAll(sandboxes []node.Sandbox) []listedSandbox {
	out := make([]listedSandbox, len(sandboxes))
	for i, sb := range sandboxes {
		out[i] = listed(sb)
	}
	return out
}

func parseListQuery(ctx *fasthttp.RequestCtx) (*listQuery, error) {
	_, rawQuery := splitURI(ctx.Request.Header.RequestURI())
	args, err := url.ParseQuery(string(rawQuery))
	if err != nil {
		return nil, errorf(fasthttp.StatusBadRequest, "query: %v", err)
	}
	q := &listQuery{limit: maxPage, states: map[node.State]bool{}, template: args.Get("template")}
	for _, parse := range []func(url.Values) error{q.parseMetadata, q.parseState, q.parseOrder, q.parseLimit, q.parseStartedAfter, q.parseToken} {
		if err := parse(args); err != nil {
			return nil, err
		}
	}
	if strings.Contains(q.template, ":") {
		return nil, errorf(fasthttp.StatusBadRequest, "template: a tag can't be filtered on")
	}
	return q, nil
}

// parseMetadata undoes the SDKs' triple encoding: the query value is itself a query string whose keys and
// values were escaped once more.
func (q *listQuery) parseMetadata(args url.Values) error {
	raw := args.Get("metadata")
	if raw == "" {
		return nil
	}
	pairs, err := url.ParseQuery(raw)
	if err != nil {
		return errorf(fasthttp.StatusBadRequest, "metadata: %v", err)
	}
	q.metadata = make(map[string]string, len(pairs))
	for k, v := range pairs {
		key, err := url.QueryUnescape(k)
		if err != nil {
			return errorf(fasthttp.StatusBadRequest, "metadata: %v", err)
		}
		value, err := url.QueryUnescape(v[0])
		if err != nil {
			return errorf(fasthttp.StatusBadRequest, "metadata: %v", err)
		}
		q.metadata[key] = value
	}
	return nil
}

func (q *listQuery) parseState(args url.Values) error {
	for _, value := range args["state"] {
		for _, state := range strings.Split(value, ",") {
			switch st := node.State(state); st {
			case node.StateRunning, node.StatePaused:
				q.states[st] = true
			default:
				return errorf(fasthttp.StatusBadRequest, "state: must be running or paused, not %q", clip(state, 60))
			}
		}
	}
	if len(q.states) == 0 {
		q.states[node.StateRunning], q.states[node.StatePaused] = true, true
	}
	return nil
}

func (q *listQuery) parseOrder(args url.Values) error {
	switch order := args.Get("order"); order {
	case "", "desc":
	case "asc":
		q.ascending = true
	default:
		return errorf(fasthttp.StatusBadRequest, "order: must be asc or desc, not %q", clip(order, 60))
	}
	return nil
}

func (q *listQuery) parseLimit(args url.Values) error {
	raw := args.Get("limit")
	if raw == "" {
		return nil
	}
	n, err := strconv.Atoi(raw)
	if err != nil || n < 1 || n > maxPage {
		return errorf(fasthttp.StatusBadRequest, "limit: must be from 1 to %d, not %q", maxPage, clip(raw, 60))
	}
	q.limit = n
	return nil
}

func (q *listQuery) parseStartedAfter(args url.Values) error {
	raw := args.Get("startedAfter")
	if raw == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, raw)
	if err != nil {
		return errorf(fasthttp.StatusBadRequest, "startedAfter: must be a time such as 2026-01-02T15:04:05Z, not %q", clip(raw, 60))
	}
	q.startedAfter = t.Truncate(time.Microsecond)
	return nil
}

const ascendingMark = "__asc"

// token encodes where the page ended. The order is part of it: a cursor used with another order is refused.
func (q *listQuery) token(last node.Sandbox) string {
	s := last.StartedAt.UTC().Format(time.RFC3339Nano) + "__" + last.ID
	if q.ascending {
		s += ascendingMark
	}
	return base64.URLEncoding.EncodeToString([]byte(s))
}

func (q *listQuery) parseToken(args url.Values) error {
	raw := args.Get("nextToken")
	if raw == "" {
		return nil
	}
	bad := errorf(fasthttp.StatusBadRequest, "nextToken: is not a token of this list")
	decoded, err := base64.URLEncoding.DecodeString(raw)
	if err != nil {
		return bad
	}
	s, ascending := strings.CutSuffix(string(decoded), ascendingMark)
	stamp, id, ok := strings.Cut(s, "__")
	t, err := time.Parse(time.RFC3339Nano, stamp)
	if !ok || err != nil || ascending != q.ascending {
		return bad
	}
	q.after = &cursor{startedAt: t, id: id}
	return nil
}

// matching returns the team's sandboxes that fit, in the asked order, from the first page on.
func (s *Server) matching(team string, q *listQuery) []node.Sandbox {
	if q.template != "" {
		t, err := s.node.Template(q.template)
		if err != nil {
			return nil
		}
		q.template = t.ID
	}
	var out []node.Sandbox
	for _, sb := range s.node.List() {
		if sb.Team == team && q.matches(sb) {
			out = append(out, sb)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if q.ascending {
			return before(out[i], out[j])
		}
		return before(out[j], out[i])
	})
	return out
}

func before(a, b node.Sandbox) bool {
	if a.StartedAt.Equal(b.StartedAt) {
		return a.ID < b.ID
	}
	return a.StartedAt.Before(b.StartedAt)
}

func (q *listQuery) matches(sb node.Sandbox) bool {
	if !q.states[sb.State] || q.template != "" && sb.TemplateID != q.template {
		return false
	}
	if !q.startedAfter.IsZero() && sb.StartedAt.Truncate(time.Microsecond).Before(q.startedAfter) {
		return false
	}
	for k, v := range q.metadata {
		if got, ok := sb.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// page cuts the asked page out of the sorted list and reports whether more follow.
func (q *listQuery) page(all []node.Sandbox) ([]node.Sandbox, bool) {
	if q.after != nil {
		last := node.Sandbox{StartedAt: q.after.startedAt, ID: q.after.id}
		n := sort.Search(len(all), func(i int) bool {
			if q.ascending {
				return before(last, all[i])
			}
			return before(all[i], last)
		})
		all = all[n:]
	}
	if len(all) > q.limit {
		return all[:q.limit], true
	}
	return all, false
}
