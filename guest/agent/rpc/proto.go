package rpc

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// protoCodec speaks protobuf's binary form. It reads the layout from struct tags: `pb:"3"` is field 3,
// `pb:"3,zigzag"` a sint32. A nil pointer is an absent field; a pointer to a scalar is an optional or
// oneof member, written even when zero. Lists hold messages or strings; maps are string to string.
type protoCodec struct{}

// A protoField is one tagged field of a struct.
type protoField struct {
	index  int
	number protowire.Number
	zigzag bool
}

var layouts sync.Map // reflect.Type → []protoField

// layoutOf reads a struct's tags once. A malformed tag is a programming error and panics.
func layoutOf(t reflect.Type) []protoField {
	if l, ok := layouts.Load(t); ok {
		return l.([]protoField)
	}
	var fields []protoField
	for i := range t.NumField() {
		tag, ok := t.Field(i).Tag.Lookup("pb")
		if !ok {
			continue
		}
		num, opt, _ := strings.Cut(tag, ",")
		n, err := strconv.Atoi(num)
		if err != nil {
			panic(fmt.Sprintf("rpc: %s.%s: bad pb tag %q", t, t.Field(i).Name, tag))
		}
		fields = append(fields, protoField{i, protowire.Number(n), opt == "zigzag"})
	}
	layouts.Store(t, fields)
	return fields
}

func (protoCodec) marshal(msg any) ([]byte, error) {
	return MarshalProto(msg), nil
}

// MarshalProto writes a message, a pointer to a tagged struct, in protobuf's binary form.
func MarshalProto(msg any) []byte { return appendMessage(nil, reflect.ValueOf(msg).Elem()) }

// UnmarshalProto fills a message from protobuf's binary form.
func UnmarshalProto(data []byte, msg any) error {
	return readMessage(data, reflect.ValueOf(msg).Elem(), 0)
}

func appendMessage(b []byte, v reflect.Value) []byte {
	for _, f := range layoutOf(v.Type()) {
		b = appendField(b, f, v.Field(f.index))
	}
	return b
}

func appendField(b []byte, f protoField, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				b = appendValue(b, f, v.Index(i))
			}
			return b
		}
		// Bytes are nearly always oneof members here: present means not nil, even if empty.
		if v.IsNil() {
			return b
		}
	case reflect.Map:
		for iter := v.MapRange(); iter.Next(); {
			var entry []byte
			entry = appendValue(entry, protoField{number: 1}, iter.Key())
			entry = appendValue(entry, protoField{number: 2}, iter.Value())
			b = protowire.AppendTag(b, f.number, protowire.BytesType)
			b = protowire.AppendBytes(b, entry)
		}
		return b
	case reflect.Pointer:
		if v.IsNil() {
			return b
		}
	default:
		if v.IsZero() {
			return b
		}
	}
	return appendValue(b, f, v)
}

// appendValue writes a tag and a value that is known to be present.
func appendValue(b []byte, f protoField, v reflect.Value) []byte {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		b = protowire.AppendTag(b, f.number, protowire.BytesType)
		return protowire.AppendBytes(b, appendMessage(nil, v))
	case reflect.String:
		b = protowire.AppendTag(b, f.number, protowire.BytesType)
		return protowire.AppendString(b, v.String())
	case reflect.Slice:
		b = protowire.AppendTag(b, f.number, protowire.BytesType)
		return protowire.AppendBytes(b, v.Bytes())
	}
	b = protowire.AppendTag(b, f.number, protowire.VarintType)
	switch v.Kind() {
	case reflect.Bool:
		return protowire.AppendVarint(b, protowire.EncodeBool(v.Bool()))
	case reflect.Uint32, reflect.Uint64:
		return protowire.AppendVarint(b, v.Uint())
	default:
		if f.zigzag {
			return protowire.AppendVarint(b, protowire.EncodeZigZag(v.Int()))
		}
		return protowire.AppendVarint(b, uint64(v.Int()))
	}
}

func (protoCodec) unmarshal(data []byte, msg any) error { return UnmarshalProto(data, msg) }

// maxDepth bounds nesting; the protocol's own messages nest four deep.
const maxDepth = 16

func readMessage(data []byte, v reflect.Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("protobuf: nested deeper than %d", maxDepth)
	}
	layout := layoutOf(v.Type())
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return fmt.Errorf("protobuf: %w", protowire.ParseError(n))
		}
		data = data[n:]
		size := protowire.ConsumeFieldValue(num, typ, data)
		if size < 0 {
			return fmt.Errorf("protobuf: field %d: %w", num, protowire.ParseError(size))
		}
		for _, f := range layout {
			if f.number != num {
				continue
			}
			if err := readField(data[:size], typ, f, v.Field(f.index), depth); err != nil {
				return fmt.Errorf("field %d: %w", num, err)
			}
		}
		data = data[size:]
	}
	return nil
}

func readField(data []byte, typ protowire.Type, f protoField, v reflect.Value, depth int) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return readField(data, typ, f, v.Elem(), depth)
	case reflect.Struct, reflect.String, reflect.Slice, reflect.Map:
		if typ != protowire.BytesType {
			return fmt.Errorf("protobuf: wire type %d where bytes belong", typ)
		}
		raw, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		return readBytes(raw, f, v, depth)
	}
	if typ != protowire.VarintType {
		return fmt.Errorf("protobuf: wire type %d where a varint belongs", typ)
	}
	x, n := protowire.ConsumeVarint(data)
	if n < 0 {
		return protowire.ParseError(n)
	}
	readVarint(x, f, v)
	return nil
}

func readBytes(raw []byte, f protoField, v reflect.Value, depth int) error {
	switch v.Kind() {
	case reflect.Struct:
		return readMessage(raw, v, depth+1)
	case reflect.String:
		v.SetString(string(raw))
	case reflect.Map:
		var entry struct {
			Key   string `pb:"1"`
			Value string `pb:"2"`
		}
		if err := readMessage(raw, reflect.ValueOf(&entry).Elem(), depth+1); err != nil {
			return err
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(reflect.ValueOf(entry.Key), reflect.ValueOf(entry.Value))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(append(make([]byte, 0, len(raw)), raw...))
			return nil
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		target := elem
		if elem.Kind() == reflect.Pointer {
			elem.Set(reflect.New(elem.Type().Elem()))
			target = elem.Elem()
		}
		if err := readBytes(raw, f, target, depth); err != nil {
			return err
		}
		v.Set(reflect.Append(v, elem))
	}
	return nil
}

// readVarint stores x, cut to the field's width as protobuf asks.
func readVarint(x uint64, f protoField, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(x != 0)
	case reflect.Uint32:
		v.SetUint(x & math.MaxUint32)
	case reflect.Int32:
		if f.zigzag {
			x = uint64(protowire.DecodeZigZag(x & math.MaxUint32))
		}
		v.SetInt(int64(int32(x)))
	case reflect.Int64:
		v.SetInt(int64(x))
	}
}
