package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

// Default times to live in seconds, by API generation.
const (
	defaultTimeoutV1 = 15
	defaultTimeoutV2 = 300
)

// newSandbox is the body of a create. Fields that ask for what is not offered are there to be refused: nothing
// a caller relies on may be dropped in silence.
type newSandbox struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *int64            `json:"timeout"`
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"envVars"`
	Secure              *bool             `json:"secure"`
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	AutoPause           bool              `json:"autoPause"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory"`
	AutoResume          *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Network      networkBody    `json:"network"`
	MCP          map[string]any `json:"mcp"`
	IAM          map[string]any `json:"iam"`
	VolumeMounts []any          `json:"volumeMounts"`
}

// refuseUnoffered names the first wish that can't be granted.
func (n *newSandbox) refuseUnoffered() error {
	for _, f := range []struct {
		name  string
		asked bool
	}{
		{"autoPause", n.AutoPause},
		{"autoResume", n.AutoResume != nil && n.AutoResume.Enabled},
		{"network", n.Network.restricts()},
		{"mcp", len(n.MCP) > 0},
		{"iam", len(n.IAM) > 0},
		{"volumeMounts", len(n.VolumeMounts) > 0},
	} {
		if f.asked {
			return errorf(fasthttp.StatusNotImplemented, "%s: not offered by this server", f.name)
		}
	}
	if n.AutoPauseMemory != nil && !*n.AutoPauseMemory {
		return errorf(fasthttp.StatusBadRequest, "autoPauseMemory: false needs autoPause")
	}
	return nil
}

func createV1(s *Server, r *request) error { return s.create(r, defaultTimeoutV1, false) }

// createV2 makes secured sandboxes only.
func createV2(s *Server, r *request) error { return s.create(r, defaultTimeoutV2, true) }

func (s *Server) create(r *request, defaultTimeout int64, secure bool) error {
	var body newSandbox
	raw, err := decode(r.RequestCtx, &body)
	if err != nil {
		return err
	}
	req, err := s.createRequest(r.team, &body, defaultTimeout, secure)
	if err != nil {
		return err
	}
	sb, err := s.createOnce(r, raw, func() (node.Sandbox, error) { return s.createSandbox(req) })
	if err != nil {
		return err
	}
	if timing := serverTiming(sb.Phases); timing != "" {
		r.Response.Header.Set("Server-Timing", timing)
	}
	writeJSON(r.RequestCtx, fasthttp.StatusCreated, s.sandboxBody(sb))
	return nil
}

// serverTiming tells where the time of a create went, in the header's milliseconds (W3C Server Timing).
func serverTiming(phases []node.Phase) string {
	var b strings.Builder
	for i, p := range phases {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s;dur=%.6f", p.Name, float64(p.Duration.Nanoseconds())/1e6)
	}
	return b.String()
}

func (s *Server) createRequest(team string, body *newSandbox, defaultTimeout int64, secure bool) (node.CreateRequest, error) {
	if body.TemplateID == "" {
		return node.CreateRequest{}, errorf(fasthttp.StatusBadRequest, "templateID: is required")
	}
	if body.Timeout != nil {
		defaultTimeout = *body.Timeout
	}
	timeout, err := seconds("timeout", defaultTimeout, 1, s.maxTimeout)
	if err != nil {
		return node.CreateRequest{}, err
	}
	if err := body.refuseUnoffered(); err != nil {
		return node.CreateRequest{}, err
	}
	return node.CreateRequest{
		Template:      body.TemplateID,
		Timeout:       timeout,
		Team:          team,
		Metadata:      body.Metadata,
		Env:           body.EnvVars,
		Secure:        secure || body.Secure != nil && *body.Secure,
		AllowInternet: body.AllowInternetAccess,
		Network:       body.Network.policy(),
	}, nil
}

// createSandbox bounds a create in time. It does not end with the client's connection: the answer may be on
// its way already, and the sandbox's own timeout cleans up after a caller that is gone.
func (s *Server) createSandbox(req node.CreateRequest) (node.Sandbox, error) {
	ctx, cancel := context.WithTimeout(s.background, s.createTimeout)
	defer cancel()
	sb, err := s.node.Create(ctx, req)
	switch {
	case err == nil, errors.Is(err, node.ErrTemplateNotFound), errors.Is(err, node.ErrCapacity),
		errors.Is(err, node.ErrPolicy), errors.Is(err, node.ErrNoNetwork):
		return sb, err
	case errors.Is(err, context.DeadlineExceeded):
		return sb, &apiError{Code: fasthttp.StatusGatewayTimeout, Message: "create sandbox: " + err.Error(),
			ErrorCode: "sandbox_placement_timeout"}
	default:
		return sb, &apiError{Code: fasthttp.StatusInternalServerError, Message: "create sandbox: " + err.Error(),
			ErrorCode: "sandbox_create_failed"}
	}
}

// own returns the sandbox that the first path parameter names, if it is the caller's. Another team's is
// reported just as one that does not exist.
func (s *Server) own(r *request) (node.Sandbox, error) {
	id := sandboxID(r.params[0])
	sb, err := s.node.Get(id)
	if err == nil && sb.Team != r.team {
		err = node.ErrNotFound
	}
	if errors.Is(err, node.ErrNotFound) {
		return node.Sandbox{}, errorf(fasthttp.StatusNotFound, "sandbox %q was not found", clip(id, 64))
	}
	return sb, err
}

// sandboxID accepts both "<id>" and "<id>-<clientID>".
func sandboxID(param string) string {
	id, _, _ := strings.Cut(param, "-")
	return id
}

func getSandbox(s *Server, r *request) error {
	sb, err := s.own(r)
	if err != nil {
		return err
	}
	writeJSON(r.RequestCtx, fasthttp.StatusOK, s.detail(sb))
	return nil
}

func killSandbox(s *Server, r *request) error {
	sb, err := s.own(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.background, s.createTimeout)
	defer cancel()
	err = s.node.Kill(ctx, sb.ID)
	// Whatever the node says, nothing may flow any more: streams must break now, not at their next byte.
	s.upstreams.drop(sb.ID)
	if err != nil {
		return err
	}
	r.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}

// connectV1 demands a timeout; connectV2 has a default.
func connectV1(s *Server, r *request) error { return s.connect(r, nil) }

func connectV2(s *Server, r *request) error {
	fallback := int64(defaultTimeoutV2)
	return s.connect(r, &fallback)
}

// connect gives a running sandbox at least the asked time to live; it never shortens it.
func (s *Server) connect(r *request, fallback *int64) error {
	var body struct {
		Timeout *int64 `json:"timeout"`
		Memory  *bool  `json:"memory"`
	}
	if _, err := decode(r.RequestCtx, &body); err != nil {
		return err
	}
	if body.Timeout == nil {
		body.Timeout = fallback
	}
	if body.Timeout == nil {
		return errorf(fasthttp.StatusBadRequest, "timeout: is required")
	}
	timeout, err := seconds("timeout", *body.Timeout, 1, s.maxTimeout)
	if err != nil {
		return err
	}
	sb, err := s.own(r)
	if err != nil {
		return err
	}
	if sb.State != node.StateRunning {
		return errorf(fasthttp.StatusNotImplemented, "sandbox %q is %s; this server can't resume", sb.ID, sb.State)
	}
	if sb, err = s.node.Extend(sb.ID, time.Now().Add(timeout)); err != nil {
		return err
	}
	writeJSON(r.RequestCtx, fasthttp.StatusOK, s.sandboxBody(sb))
	return nil
}

// setTimeout sets the end to now + timeout, which may be sooner than before; 0 ends the sandbox now.
func setTimeout(s *Server, r *request) error {
	var body struct {
		Timeout *int64 `json:"timeout"`
	}
	if _, err := decode(r.RequestCtx, &body); err != nil {
		return err
	}
	if body.Timeout == nil {
		return errorf(fasthttp.StatusBadRequest, "timeout: is required")
	}
	timeout, err := seconds("timeout", *body.Timeout, 0, s.maxTimeout)
	if err != nil {
		return err
	}
	sb, err := s.own(r)
	if err != nil {
		return err
	}
	if err := s.node.SetTimeout(sb.ID, time.Now().Add(timeout)); err != nil {
		return err
	}
	r.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}

// refresh extends the time to live by at most an hour.
func refresh(s *Server, r *request) error {
	var body struct {
		Duration *int64 `json:"duration"`
	}
	if _, err := decode(r.RequestCtx, &body); err != nil {
		return err
	}
	if body.Duration == nil {
		fallback := int64(defaultTimeoutV1)
		body.Duration = &fallback
	}
	duration, err := seconds("duration", *body.Duration, 0, time.Hour)
	if err != nil {
		return err
	}
	sb, err := s.own(r)
	if err != nil {
		return err
	}
	if _, err := s.node.Extend(sb.ID, time.Now().Add(duration)); err != nil {
		return err
	}
	r.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}
