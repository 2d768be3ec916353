package e2btest

import (
	"strings"
	"testing"
)

func TestVersions(t *testing.T) {
	tests := []struct {
		in   string
		want version
		ok   bool // not older than minNode
	}{
		{"v20.19.2\n", version{20, 19, 2}, true},
		{"v20.18.1", version{20, 18, 1}, true},
		{"v20.18.0", version{20, 18, 0}, false},
		{"v18.20.4", version{18, 20, 4}, false},
		{"v22.0.0", version{22, 0, 0}, true},
	}
	for _, tt := range tests {
		got, err := parseVersion(tt.in)
		if err != nil || got != tt.want || !got.less(minNode) != tt.ok {
			t.Errorf("%q is %v, %v, new enough %v; want %v, %v", tt.in, got, err, !got.less(minNode), tt.want, tt.ok)
		}
	}
	for _, bad := range []string{"", "v20", "v20.x.1", "20.1"} {
		if v, err := parseVersion(bad); err == nil {
			t.Errorf("%q is %v, want an error", bad, v)
		}
	}
}

// A lock file that names where its packages came from would send every machine to the registry of the machine
// that wrote it.
func TestLockFileNamesNoRegistry(t *testing.T) {
	if strings.Contains(string(packageLock), `"resolved"`) {
		t.Error(`package-lock.json has "resolved" fields: write it with --omit-lockfile-registry-resolved`)
	}
	for _, want := range []string{`"e2b": "2.51.0"`, `"e2b-2.45": "npm:e2b@2.45.0"`, `"@e2b/code-interpreter": "2.8.0"`} {
		if !strings.Contains(string(packageJSON), want) || !strings.Contains(string(packageLock), want) {
			t.Errorf("package.json and its lock file do not both pin %s", want)
		}
	}
}
