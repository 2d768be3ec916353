package e2b

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"cella.dev/cella/guest/agent/rpc"
)

func ptr[T any](v T) *T { return &v }

func event(e *ProcessEvent) *EventResponse { return &EventResponse{Event: e} }

// vectors pair messages with what protoc 3.21 --encode makes of them, and with their proto3 JSON.
var vectors = []struct {
	name, binary, json string
	msg                any
}{
	{
		"start request",
		"0a260a092f62696e2f6261736812022d6c12022d6312076563686f20c3bc1a060a0141120162220012060a04085010181a01742000",
		`{"process":{"cmd":"/bin/bash","args":["-l","-c","echo ü"],"envs":{"A":"b"},"cwd":""},"pty":{"size":{"cols":80,"rows":24}},"tag":"t","stdin":false}`,
		&StartRequest{
			Process: &ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", "echo ü"}, Envs: map[string]string{"A": "b"}, Cwd: ptr("")},
			PTY:     &PTY{Size: &PTYSize{Cols: 80, Rows: 24}}, Tag: ptr("t"), Stdin: ptr(false),
		},
	},
	{
		"killed",
		"0a241a2208011a0e7369676e616c3a206b696c6c6564220e7369676e616c3a206b696c6c6564",
		`{"event":{"end":{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}}}`,
		event(&ProcessEvent{End: &EndEvent{ExitCode: -1, Status: "signal: killed", Error: ptr("signal: killed")}}),
	},
	{
		"exit 127",
		"0a291a2708fe0110011a0f657869742073746174757320313237220f657869742073746174757320313237",
		`{"event":{"end":{"exitCode":127,"exited":true,"status":"exit status 127","error":"exit status 127"}}}`,
		event(&ProcessEvent{End: &EndEvent{ExitCode: 127, Exited: true, Status: "exit status 127", Error: ptr("exit status 127")}}),
	},
	{
		"bytes", "0a061204120200ff", `{"event":{"data":{"stderr":"AP8="}}}`,
		event(&ProcessEvent{Data: &DataEvent{Stderr: rpc.Bytes{0, 255}}}),
	},
	{
		"keepalive", "0a022200", `{"event":{"keepalive":{}}}`,
		event(&ProcessEvent{KeepAlive: &KeepAlive{}}),
	},
	{
		"signal by empty tag", "0a0212001009", `{"process":{"tag":""},"signal":"SIGNAL_SIGKILL"}`,
		&SendSignalRequest{Process: &ProcessSelector{Tag: ptr("")}, Signal: SignalKill},
	},
	{
		"input stream", "120512030a0178", `{"data":{"input":{"stdin":"eA=="}}}`,
		&StreamInputRequest{Data: &StreamInputData{Input: &ProcessInput{Stdin: rpc.Bytes("x")}}},
	},
	{
		"entries",
		"0a430a016610031a022f662080e497d01228a403320a2d72772d722d2d722d2d3a04757365724204757365724a0b0880e2cfaa0610c096b10252022f675a060a016b1201760a0e0a016720ffffffffffffffffff01",
		`{"entries":[{"name":"f","type":"FILE_TYPE_SYMLINK","path":"/f","size":"5000000000","mode":420,"permissions":"-rw-r--r--","owner":"user","group":"user","modifiedTime":"2023-11-14T22:13:20.005Z","symlinkTarget":"/g","metadata":{"k":"v"}},{"name":"g","size":"-1"}]}`,
		&ListDirResponse{Entries: []*EntryInfo{
			{
				Name: "f", Type: FileTypeSymlink, Path: "/f", Size: 5000000000, Mode: 0o644, Permissions: "-rw-r--r--",
				Owner: "user", Group: "user", ModifiedTime: &rpc.Timestamp{Seconds: 1700000000, Nanos: 5000000},
				SymlinkTarget: ptr("/g"), Metadata: map[string]string{"k": "v"},
			},
			{Name: "g", Size: -1},
		}},
	},
	{
		"filesystem event", "12070a03642f661005", `{"filesystem":{"name":"d/f","type":"EVENT_TYPE_CHMOD"}}`,
		&WatchEvent{Filesystem: &FilesystemEvent{Name: "d/f", Type: EventChmod}},
	},
	{
		"watch request", "0a022f70100118012001",
		`{"path":"/p","recursive":true,"includeEntry":true,"allowNetworkMounts":true}`,
		&WatchRequest{Path: "/p", Recursive: true, IncludeEntry: true, AllowNetworkMounts: true},
	},
}

func TestMessagesInBothCodecs(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			if got, err := json.Marshal(v.msg); err != nil || string(got) != v.json {
				t.Errorf("JSON %s, %v\nwant %s", got, err, v.json)
			}
			fromJSON := reflect.New(reflect.TypeOf(v.msg).Elem()).Interface()
			if err := json.Unmarshal([]byte(v.json), fromJSON); err != nil || !reflect.DeepEqual(fromJSON, v.msg) {
				t.Errorf("from JSON %+v, %v", fromJSON, err)
			}
			if got := hex.EncodeToString(rpc.MarshalProto(v.msg)); got != v.binary {
				t.Errorf("protobuf %s\nwant     %s", got, v.binary)
			}
			raw, _ := hex.DecodeString(v.binary)
			fromProto := reflect.New(reflect.TypeOf(v.msg).Elem()).Interface()
			if err := rpc.UnmarshalProto(raw, fromProto); err != nil || !reflect.DeepEqual(fromProto, v.msg) {
				t.Errorf("from protobuf %+v, %v", fromProto, err)
			}
		})
	}
}

func TestEmptyOneofMemberIsPresent(t *testing.T) {
	raw, _ := hex.DecodeString("0a0608ffffffff0f12021200") // pid 4294967295, empty pty
	var req SendInputRequest
	if err := rpc.UnmarshalProto(raw, &req); err != nil {
		t.Fatal(err)
	}
	if *req.Process.PID != 4294967295 || req.Input.PTY == nil || req.Input.Stdin != nil {
		t.Errorf("got %+v, %+v", req.Process, req.Input)
	}
}

func TestJSONAsOthersWriteIt(t *testing.T) {
	for in, want := range map[string]SendSignalRequest{
		`{"process":{"pid":"7"},"signal":9}`:                                      {&ProcessSelector{PID: ptr(rpc.Uint32(7))}, SignalKill},
		`{"process":{"pid":7,"tag":null},"signal":"SIGNAL_SIGTERM","unknown":[]}`: {&ProcessSelector{PID: ptr(rpc.Uint32(7))}, SignalTerm},
	} {
		var got SendSignalRequest
		if err := json.Unmarshal([]byte(in), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{`"+/8="`: "\xfb\xff", `"-_8"`: "\xfb\xff", `""`: ""} {
		var got rpc.Bytes
		if err := json.Unmarshal([]byte(in), &got); err != nil || string(got) != want {
			t.Errorf("bytes %s: %x, %v", in, got, err)
		}
	}
	for _, bad := range []string{`{"signal":"SIGHUP"}`, `{"process":{"pid":-1}}`, `{"process":{"pid":4294967296}}`} {
		if err := json.Unmarshal([]byte(bad), new(SendSignalRequest)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// FuzzUnmarshal proves that no input makes the binary codec panic, and that what it reads it writes back.
func FuzzUnmarshal(f *testing.F) {
	for _, v := range vectors {
		raw, _ := hex.DecodeString(v.binary)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, msg := range []any{new(StartRequest), new(EventResponse), new(ListDirResponse), new(StreamInputRequest)} {
			if rpc.UnmarshalProto(raw, msg) != nil {
				continue
			}
			again := reflect.New(reflect.TypeOf(msg).Elem()).Interface()
			if err := rpc.UnmarshalProto(rpc.MarshalProto(msg), again); err != nil || !reflect.DeepEqual(msg, again) {
				t.Errorf("%T: read %+v, written and read again %+v, %v", msg, msg, again, err)
			}
		}
	})
}

// TestUnaryOverHTTP shows both codecs through the server.
func TestUnaryOverHTTP(t *testing.T) {
	h := rpc.Unary(func(_ *http.Request, _ *rpc.Call, req *PathRequest) (*EntryResponse, error) {
		if req.Path == "" {
			return nil, rpc.Errorf(rpc.NotFound, "no path")
		}
		return &EntryResponse{Entry: &EntryInfo{Path: req.Path}}, nil
	})
	for _, tc := range []struct {
		mediaType, body string
		status          int
		want            string
	}{
		{"application/json", `{"path":"/x"}`, 200, `{"entry":{"path":"/x"}}`},
		{"application/json; charset=utf-8", `{"path":"/x"}`, 200, `{"entry":{"path":"/x"}}`},
		{"application/proto", "\x0a\x02/x", 200, "\x0a\x04\x1a\x02/x"},
		{"application/json", ``, 404, `{"code":"not_found","message":"no path"}`},
		{"application/proto", ``, 404, `{"code":"not_found","message":"no path"}`},
		{"application/proto", "\x0a\xff", 400, `{"code":"invalid_argument","message":"unmarshal message: protobuf: field 1: unexpected EOF"}`},
		{"application/connect+json", `{}`, 415, ``},
	} {
		r := httptest.NewRequest("POST", "/", bytes.NewReader([]byte(tc.body)))
		r.Header.Set("Content-Type", tc.mediaType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tc.status || w.Body.String() != tc.want {
			t.Errorf("%s %q: %d %q, want %d %q", tc.mediaType, tc.body, w.Code, w.Body, tc.status, tc.want)
		}
	}
}
