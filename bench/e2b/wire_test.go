package e2b

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestParseServerTiming(t *testing.T) {
	tests := []struct {
		name string
		in   []string
		want []Phase
	}{
		{"none", nil, nil},
		{"two headers", []string{"claim;dur=0.5", "disk;desc=\"clone\";dur=2"}, []Phase{{"claim", 500 * time.Microsecond}, {"disk", 2 * time.Millisecond}}},
		{"quoted and spaced", []string{` restore ; dur="1.25" `}, []Phase{{"restore", 1250 * time.Microsecond}}},
		{"unsound entries", []string{"a;dur=-1, b;dur=NaN, c;dur=x, ;dur=1, d, e;dur=1e300"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := parseServerTiming(test.in); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestReadEventsRefusesBrokenStreams(t *testing.T) {
	tests := map[string][]byte{
		"cut header":      {0, 0},
		"cut payload":     {0, 0, 0, 0, 9, '{'},
		"huge frame":      {0, 0xff, 0xff, 0xff, 0xff},
		"not JSON":        {0, 0, 0, 0, 1, '{'},
		"end without end": append([]byte{2, 0, 0, 0, 2}, "{}"...),
	}
	for name, stream := range tests {
		t.Run(name, func(t *testing.T) {
			var out Output
			if err := readEvents(bytes.NewReader(stream), &out); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want ErrProtocol", err)
			}
		})
	}
}
