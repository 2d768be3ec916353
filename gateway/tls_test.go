package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// secure serves r's gateway under TLS too, and returns a client that finds every host of testDomain there.
func (r *rig) secure(http2 bool) *http.Client {
	r.t.Helper()
	cert := selfSigned(r.t, "*."+testDomain)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.gw.ServeTLS(ln, &tls.Config{Certificates: []tls.Certificate{cert}}) }()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		r.gw.Shutdown(ctx)
		if err := <-served; err != nil {
			r.t.Errorf("ServeTLS: %v", err)
		}
	})
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", ln.Addr().String())
		},
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: http2,
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func selfSigned(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func TestTLS(t *testing.T) {
	for _, c := range []struct {
		name  string
		http2 bool
		major int
	}{{"HTTP/1.1", false, 1}, {"HTTP/2", true, 2}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			client := r.secure(c.http2)
			sb := r.sandbox(true)
			r.node.serve(t, sb.ID, 8080, func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path != "/events" {
					echo(w, req)
					return
				}
				w.(http.Flusher).Flush()
				io.WriteString(w, "event")
				w.(http.Flusher).Flush()
				<-req.Context().Done()
			})
			base := "https://8080-" + sb.ID + "." + testDomain
			get := func(url string, headers ...string) (*http.Response, string) {
				t.Helper()
				req, _ := http.NewRequest("GET", url, nil)
				for i := 0; i < len(headers); i += 2 {
					req.Header.Set(headers[i], headers[i+1])
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				return resp, string(body)
			}
			resp, body := get("https://api."+testDomain+"/v2/sandboxes", "X-API-Key", r.key)
			if resp.ProtoMajor != c.major || resp.StatusCode != 200 || !strings.Contains(body, sb.ID) {
				t.Errorf("list: HTTP/%d %d %s", resp.ProtoMajor, resp.StatusCode, body)
			}
			if resp, body := get("https://49983-" + sb.ID + "." + testDomain + "/envs"); resp.StatusCode != 401 {
				t.Errorf("agent without token: %d %s", resp.StatusCode, body)
			}
			_, body = get(base+"/a%2Fb//c?x=1;y&&", "X-Forwarded-For", "6.6.6.6")
			got := parse[echoed](t, body)
			if got.URI != "/a%2Fb//c?x=1;y&&" || got.Host != "8080-"+sb.ID+"."+testDomain ||
				got.Header.Get("X-Forwarded-Proto") != "https" || got.Header.Get("X-Forwarded-For") != "127.0.0.1" {
				t.Errorf("arrived as %+v", got)
			}
			resp, err := client.Post(base, "text/plain", io.LimitReader(&pattern{}, 5<<20))
			if err != nil {
				t.Fatal(err)
			}
			n, _ := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 || n < 5<<20 {
				t.Errorf("upload: %d, %d bytes back", resp.StatusCode, n)
			}
			resp, err = client.Get(base + "/events")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			within(t, "first event", func() {
				if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
					t.Error(err)
				}
			})
			if status, _, _ := r.call("DELETE", "/sandboxes/"+sb.ID, ""); status != 204 {
				t.Fatalf("kill = %d", status)
			}
			within(t, "end of the stream of a killed sandbox", func() {
				if _, err := io.ReadAll(resp.Body); err == nil {
					t.Error("the stream ended cleanly; want an error")
				}
			})
		})
	}
}

func TestSilentStreamsShareAnHTTP2Connection(t *testing.T) {
	r := newRig(t)
	client := r.secure(true)
	sb := r.sandbox(false)
	ended := make(chan struct{}, 200)
	r.node.serve(t, sb.ID, 49983, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/ping" {
			io.WriteString(w, "pong")
			return
		}
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		ended <- struct{}{}
	})
	base := fmt.Sprintf("https://49983-%s.%s", sb.ID, testDomain)
	ctx, cancel := context.WithCancel(context.Background())
	const n = 100
	for range n {
		req, _ := http.NewRequestWithContext(ctx, "GET", base+"/silent", nil)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	within(t, "a call beside them", func() {
		resp, err := client.Get(base + "/ping")
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	})
	cancel()
	within(t, "end of all streams", func() {
		for range n {
			<-ended
		}
	})
}
