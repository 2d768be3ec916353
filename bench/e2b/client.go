// Package e2b is the smallest client of the E2B API that a benchmark needs: create, run one command, write
// and read a file, kill. It does what the official SDK does on the wire and nothing more, so that a
// measurement is of the server. Any E2B-compatible server can be measured with it.
package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// AgentPort is the port of the agent in every sandbox.
const AgentPort = 49983

// Options say which server to use.
type Options struct {
	// URL is the API's base, and the data plane's too where SandboxURL is empty.
	URL        string
	SandboxURL string
	APIKey     string
	// Dial replaces TCP, for an agent behind another transport. Nil dials TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client talks to one server. It is safe for concurrent use and keeps its connections.
type Client struct {
	api, data string
	key       string
	http      *http.Client
	// oldCreate is set once the server has refused POST /v2/sandboxes.
	oldCreate atomic.Bool
}

// New returns a client; it does not connect.
func New(o Options) *Client {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	data := o.SandboxURL
	if data == "" {
		data = o.URL
	}
	return &Client{
		api:  strings.TrimRight(o.URL, "/"),
		data: strings.TrimRight(data, "/"),
		key:  o.APIKey,
		http: &http.Client{Transport: &http.Transport{
			DialContext: dial, DisableCompression: true,
			MaxIdleConns: 512, MaxIdleConnsPerHost: 512, IdleConnTimeout: time.Minute,
		}},
	}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is an answer that is not a success.
type StatusError struct {
	Op      string
	Status  int
	Message string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: HTTP %d: %s", e.Op, e.Status, e.Message)
}

// Sandbox is a sandbox that this client created.
type Sandbox struct {
	ID          string `json:"sandboxID"`
	TemplateID  string `json:"templateID"`
	AccessToken string `json:"envdAccessToken"`
	// Phases is what the server said of its own work in the Server-Timing header; may be empty.
	Phases []Phase `json:"-"`
}

// Create makes a sandbox that lives for at most timeout. It uses the current API and, on a server that does
// not know it, the one before.
func (c *Client) Create(ctx context.Context, template string, timeout time.Duration) (*Sandbox, error) {
	sb, err := c.create(ctx, template, timeout)
	if status, ok := err.(*StatusError); ok && !c.oldCreate.Load() && (status.Status == 404 || status.Status == 405) &&
		!strings.Contains(status.Message, "template") {
		c.oldCreate.Store(true)
		return c.create(ctx, template, timeout)
	}
	return sb, err
}

func (c *Client) create(ctx context.Context, template string, timeout time.Duration) (*Sandbox, error) {
	body := map[string]any{"templateID": template, "timeout": int(timeout.Seconds())}
	path := "/v2/sandboxes"
	if c.oldCreate.Load() {
		path, body["secure"] = "/sandboxes", true
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode create: %w", err)
	}
	resp, err := c.do(ctx, "create sandbox", http.MethodPost, c.api+path, bytes.NewReader(payload), func(h http.Header) {
		h.Set("Content-Type", "application/json")
	})
	if err != nil {
		return nil, err
	}
	defer drain(resp.Body)
	sb := &Sandbox{Phases: parseServerTiming(resp.Header.Values("Server-Timing"))}
	if err := json.NewDecoder(resp.Body).Decode(sb); err != nil {
		return nil, fmt.Errorf("create sandbox: decode the answer: %w", err)
	}
	if sb.ID == "" {
		return nil, fmt.Errorf("create sandbox: the answer has no sandboxID")
	}
	return sb, nil
}

// Kill ends a sandbox.
func (c *Client) Kill(ctx context.Context, sb *Sandbox) error {
	resp, err := c.do(ctx, "kill sandbox "+sb.ID, http.MethodDelete, c.api+"/sandboxes/"+url.PathEscape(sb.ID), nil, nil)
	if err != nil {
		return err
	}
	drain(resp.Body)
	return nil
}

// WriteFile puts data at path in the sandbox.
func (c *Client) WriteFile(ctx context.Context, sb *Sandbox, path string, data []byte) error {
	resp, err := c.do(ctx, "write file", http.MethodPost, c.fileURL(path), bytes.NewReader(data), func(h http.Header) {
		sb.authorize(h)
		h.Set("Content-Type", "application/octet-stream")
	})
	if err != nil {
		return err
	}
	drain(resp.Body)
	return nil
}

// ReadFile reads all of path in the sandbox.
func (c *Client) ReadFile(ctx context.Context, sb *Sandbox, path string) ([]byte, error) {
	resp, err := c.do(ctx, "read file", http.MethodGet, c.fileURL(path), nil, sb.authorize)
	if err != nil {
		return nil, err
	}
	defer drain(resp.Body)
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return data, nil
}

func (c *Client) fileURL(path string) string {
	return c.data + "/files?path=" + url.QueryEscape(path)
}

// authorize routes a request to the sandbox's agent and proves the right to call it.
func (sb *Sandbox) authorize(h http.Header) {
	h.Set("E2b-Sandbox-Id", sb.ID)
	h.Set("E2b-Sandbox-Port", strconv.Itoa(AgentPort))
	if sb.AccessToken != "" {
		h.Set("X-Access-Token", sb.AccessToken)
	}
}

// do sends one request and returns the answer if it is a success; the caller drains its body.
func (c *Client) do(ctx context.Context, op, method, url string, body io.Reader, header func(http.Header)) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if c.key != "" {
		req.Header.Set("X-API-Key", c.key)
	}
	if header != nil {
		header(req.Header)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer drain(resp.Body)
	message, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	return nil, &StatusError{Op: op, Status: resp.StatusCode, Message: strings.TrimSpace(string(message))}
}

// drain reads what is left, so that the connection can be used again.
func drain(body io.ReadCloser) {
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<20))
	body.Close()
}
