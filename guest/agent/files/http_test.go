package files

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/identity"
)

const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

func TestSignatureVectors(t *testing.T) {
	for user, want := range map[string]string{
		"user": "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
		"":     "v1_SnvZASdG5vD8p9rpaldX3434NfwgRVsYsvzCBL6oZbc",
	} {
		if got := Signature("hello.txt", "read", user, token, ""); got != want {
			t.Errorf("user %q: %s, want %s", user, got, want)
		}
	}
}

// newServer serves a home with hello.txt in it, to the user that runs the test, guarded by accessToken.
func newServer(t *testing.T, accessToken string) (mux *http.ServeMux, home string) {
	t.Helper()
	home = t.TempDir()
	passwd := "user:x:" + strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid()) + "::" + home + ":/bin/sh\n"
	etc := t.TempDir()
	for path, content := range map[string]string{
		filepath.Join(etc, "passwd"): passwd, filepath.Join(home, "hello.txt"): "hello",
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ident := identity.NewStore(accounts.Open(etc))
	ident.Set(identity.Identity{AccessToken: accessToken, DefaultUser: "user"})
	mux = http.NewServeMux()
	NewService(ident).Register(mux)
	return mux, home
}

func call(mux http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w
}

func TestSignedURLs(t *testing.T) {
	mux, _ := newServer(t, token)
	soon := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	past := strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10)
	for _, tc := range []struct {
		name, method, op, user, expiry, path string
		status                               int
		message                              string
	}{
		{"read", "GET", "read", "", "", "hello.txt", 200, ""},
		{"read as a user", "GET", "read", "user", "", "hello.txt", 200, ""},
		{"read until later", "GET", "read", "", soon, "hello.txt", 200, ""},
		{"read, expired", "GET", "read", "", past, "hello.txt", 401, "signature is already expired"},
		{"signed to write, used to read", "GET", "write", "", "", "hello.txt", 401, "invalid signature"},
		{"signed for another path", "GET", "read", "", "", "other.txt", 401, "invalid signature"},
		{"write", "POST", "write", "", "", "hello.txt", 200, ""},
		{"signed to read, used to write", "POST", "read", "", "", "hello.txt", 401, "invalid signature"},
	} {
		q := url.Values{"path": {"hello.txt"}, "signature": {Signature(tc.path, tc.op, tc.user, token, tc.expiry)}}
		if tc.user != "" {
			q.Set("username", tc.user)
		}
		if tc.expiry != "" {
			q.Set("signature_expiration", tc.expiry)
		}
		w := call(mux, tc.method, "/files?"+q.Encode(), "hello", "Content-Type", "application/octet-stream")
		if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.message) {
			t.Errorf("%s: %d %s, want %d %s", tc.name, w.Code, w.Body, tc.status, tc.message)
		}
	}
}

func TestAcceptEncoding(t *testing.T) {
	for accept, want := range map[string]string{
		"": "plain", "gzip": "gzip", "GZIP": "gzip", "gzip;q=0.5": "gzip", "identity": "plain", "*": "plain", "br": "plain",
		"gzip, deflate": "plain", "gzip;q=0.5, identity;q=1.0": "plain", "gzip;q=0, identity": "plain",
		"br, identity;q=0": "406", "*;q=0": "406", "*, identity;q=0": "gzip", "gzip, *;q=0": "gzip", "gzip, identity;q=0": "gzip",
	} {
		got := "plain"
		if zip, err := wantsGzip(accept); err != nil {
			got = "406"
		} else if zip {
			got = "gzip"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", accept, got, want)
		}
	}
}

func TestUploadToAFullDiskIs507(t *testing.T) {
	mux, home := newServer(t, "")
	if err := os.Symlink("/dev/full", filepath.Join(home, "full")); err != nil {
		t.Fatal(err)
	}
	// /dev/full is no regular file, so the write itself is what has to be tried.
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := httptest.NewRecorder()
	fail(w, copyBody(f, strings.NewReader("x")))
	if w.Code != http.StatusInsufficientStorage || !strings.Contains(w.Body.String(), "not enough disk space available") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := call(mux, "POST", "/files?path=full", "x", "Content-Type", "application/octet-stream"); w.Code != 400 {
		t.Errorf("upload to a device: %d %s", w.Code, w.Body)
	}
}

func TestUploadCutShortBlamesTheClient(t *testing.T) {
	mux, _ := newServer(t, "")
	w := call(mux, "POST", "/files?path=x", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nabc",
		"Content-Type", "multipart/form-data; boundary=b")
	if w.Code != 400 || !strings.Contains(w.Body.String(), "error reading request body") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestMetadataIsReplacedAsAWhole(t *testing.T) {
	mux, home := newServer(t, "")
	up := func(headers ...string) string {
		headers = append(headers, "Content-Type", "application/octet-stream")
		return call(mux, "POST", "/files?path=m", "x", headers...).Body.String()
	}
	want := `[{"name":"m","path":"` + home + `/m","type":"file","metadata":{"author":"mish","kind":"a"}}]` + "\n"
	if got := up("X-Metadata-Author", "mish", "X-Metadata-Kind", "a"); got != want {
		t.Fatalf("upload: %s", got)
	}
	up("X-Metadata-Kind", "b")
	if got := readMetadata(filepath.Join(home, "m")); len(got) != 1 || got["kind"] != "b" {
		t.Errorf("metadata %v, want kind b alone", got)
	}
	up()
	if got := readMetadata(filepath.Join(home, "m")); got != nil {
		t.Errorf("metadata %v, want none", got)
	}
}

func TestNamedPipeDoesNotBlock(t *testing.T) {
	mux, home := newServer(t, "")
	if err := unix.Mkfifo(filepath.Join(home, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if w := call(mux, "GET", "/files?path=fifo", ""); w.Code != 400 {
		t.Errorf("read: %d %s", w.Code, w.Body)
	}
	if w := call(mux, "POST", "/files?path=fifo", "x", "Content-Type", "application/octet-stream"); w.Code != 400 {
		t.Errorf("write: %d %s", w.Code, w.Body)
	}
}

func TestRemoveAndMoveWantPaths(t *testing.T) {
	mux, home := newServer(t, "")
	for method, body := range map[string]string{
		"Remove": `{}`, "Move": `{"destination":"x"}`,
	} {
		w := call(mux, "POST", "/filesystem.Filesystem/"+method, body, "Content-Type", "application/json")
		if w.Code != 400 || !strings.Contains(w.Body.String(), `"code":"invalid_argument"`) {
			t.Errorf("%s %s: %d %s", method, body, w.Code, w.Body)
		}
	}
	if w := call(mux, "POST", "/filesystem.Filesystem/Remove", `{"path":"/"}`, "Content-Type", "application/json"); w.Code != 400 {
		t.Errorf("Remove /: %d %s", w.Code, w.Body)
	}
	if _, err := os.Stat(filepath.Join(home, "hello.txt")); err != nil {
		t.Error("the home was emptied")
	}
}
