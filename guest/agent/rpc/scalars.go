package rpc

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bytes is a protobuf bytes field. In JSON it is base64; both alphabets are read, padded or not.
type Bytes []byte

// MarshalJSON writes standard, padded base64.
func (b Bytes) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, base64.StdEncoding.EncodedLen(len(b))+2)
	out = append(out, '"')
	out = base64.StdEncoding.AppendEncode(out, b)
	return append(out, '"'), nil
}

// UnmarshalJSON reads either base64 alphabet.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	enc := base64.RawStdEncoding
	if strings.ContainsAny(s, "-_") {
		enc = base64.RawURLEncoding
	}
	out, err := enc.DecodeString(strings.TrimRight(s, "="))
	if err != nil {
		return fmt.Errorf("bytes field: %w", err)
	}
	*b = out
	return nil
}

// Uint32 is a protobuf uint32 field; in JSON it may arrive as a number or as a string.
type Uint32 uint32

// UnmarshalJSON reads a number, or a number in quotes.
func (u *Uint32) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	n, err := strconv.ParseUint(strings.Trim(string(data), `"`), 10, 32)
	if err != nil {
		return fmt.Errorf("uint32 field: %s is not a number from 0 to 4294967295", data)
	}
	*u = Uint32(n)
	return nil
}

// Int64 is a protobuf int64 field, which proto3 JSON writes as a string.
type Int64 int64

// MarshalJSON writes the number in quotes.
func (i Int64) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(i), 10)), nil
}

// UnmarshalJSON reads a number, or a number in quotes.
func (i *Int64) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseInt(strings.Trim(string(data), `"`), 10, 64)
	if err != nil {
		return fmt.Errorf("int64 field: %s is not a number", data)
	}
	*i = Int64(n)
	return nil
}

// Timestamp is google.protobuf.Timestamp.
type Timestamp struct {
	Seconds int64 `pb:"1"`
	Nanos   int32 `pb:"2"`
}

// NewTimestamp converts t.
func NewTimestamp(t time.Time) *Timestamp {
	return &Timestamp{Seconds: t.Unix(), Nanos: int32(t.Nanosecond())}
}

// Time converts back, in UTC.
func (t *Timestamp) Time() time.Time { return time.Unix(t.Seconds, int64(t.Nanos)).UTC() }

// MarshalJSON writes RFC 3339 in UTC with 0, 3, 6 or 9 fractional digits: readers refuse other counts.
func (t *Timestamp) MarshalJSON() ([]byte, error) {
	layout := "2006-01-02T15:04:05.000000000Z"
	switch {
	case t.Nanos == 0:
		layout = "2006-01-02T15:04:05Z"
	case t.Nanos%1e6 == 0:
		layout = "2006-01-02T15:04:05.000Z"
	case t.Nanos%1e3 == 0:
		layout = "2006-01-02T15:04:05.000000Z"
	}
	return t.Time().AppendFormat([]byte{'"'}, layout+`"`), nil
}

// UnmarshalJSON reads RFC 3339.
func (t *Timestamp) UnmarshalJSON(data []byte) error {
	parsed, err := time.Parse(`"`+time.RFC3339Nano+`"`, string(data))
	if err != nil {
		return fmt.Errorf("timestamp field: %w", err)
	}
	*t = *NewTimestamp(parsed)
	return nil
}

// EnumToJSON writes an enum by its name, or by its number if it has none.
func EnumToJSON(names map[int32]string, v int32) ([]byte, error) {
	if name, ok := names[v]; ok {
		return strconv.AppendQuote(nil, name), nil
	}
	return strconv.AppendInt(nil, int64(v), 10), nil
}

// EnumFromJSON reads an enum's name or number.
func EnumFromJSON(names map[int32]string, data []byte) (int32, error) {
	if n, err := strconv.ParseInt(string(data), 10, 32); err == nil {
		return int32(n), nil
	}
	for v, name := range names {
		if string(data) == `"`+name+`"` {
			return v, nil
		}
	}
	return 0, fmt.Errorf("enum field: %s is not a known value", data)
}
