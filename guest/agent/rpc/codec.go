package rpc

import "encoding/json"

// A codec turns messages into bytes and back. There are two: proto3 JSON and protobuf's binary form.
type codec interface {
	marshal(msg any) ([]byte, error)
	// unmarshal fills msg; fields it doesn't know are ignored.
	unmarshal(data []byte, msg any) error
}

// jsonCodec relies on the messages' own json tags and the scalar types of scalars.go.
type jsonCodec struct{}

func (jsonCodec) marshal(msg any) ([]byte, error) { return json.Marshal(msg) }

func (jsonCodec) unmarshal(data []byte, msg any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, msg)
}

// codecFor finds the codec and the shape of a call in a request's media type.
func codecFor(mediaType string) (c codec, stream, ok bool) {
	switch mediaType {
	case "application/json":
		return jsonCodec{}, false, true
	case "application/proto":
		return protoCodec{}, false, true
	case "application/connect+json":
		return jsonCodec{}, true, true
	case "application/connect+proto":
		return protoCodec{}, true, true
	}
	return nil, false, false
}
