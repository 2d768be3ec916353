package e2b

import "cella.dev/cella/guest/agent/rpc"

// FileType is the protocol's enum.
type FileType int32

// File types; anything else on disk (sockets, devices, pipes) is FileTypeUnspecified.
const (
	FileTypeUnspecified FileType = 0
	FileTypeFile        FileType = 1
	FileTypeDirectory   FileType = 2
	FileTypeSymlink     FileType = 3
)

var fileTypeNames = map[int32]string{
	0: "FILE_TYPE_UNSPECIFIED", 1: "FILE_TYPE_FILE", 2: "FILE_TYPE_DIRECTORY", 3: "FILE_TYPE_SYMLINK",
}

// MarshalJSON writes the name.
func (t FileType) MarshalJSON() ([]byte, error) { return rpc.EnumToJSON(fileTypeNames, int32(t)) }

// UnmarshalJSON reads a name or a number.
func (t *FileType) UnmarshalJSON(data []byte) error {
	v, err := rpc.EnumFromJSON(fileTypeNames, data)
	*t = FileType(v)
	return err
}

// EntryInfo describes a file.
type EntryInfo struct {
	Name string   `json:"name,omitempty" pb:"1"`
	Type FileType `json:"type,omitempty" pb:"2"`
	Path string   `json:"path,omitempty" pb:"3"`
	// Size is in bytes.
	Size rpc.Int64 `json:"size,omitempty" pb:"4"`
	// Mode holds the permission bits alone; Permissions spells them out, as "-rw-r--r--".
	Mode         rpc.Uint32     `json:"mode,omitempty" pb:"5"`
	Permissions  string         `json:"permissions,omitempty" pb:"6"`
	Owner        string         `json:"owner,omitempty" pb:"7"`
	Group        string         `json:"group,omitempty" pb:"8"`
	ModifiedTime *rpc.Timestamp `json:"modifiedTime,omitempty" pb:"9"`
	// SymlinkTarget is where the link ends; Type, Mode and Size are then the target's.
	SymlinkTarget *string           `json:"symlinkTarget,omitempty" pb:"10"`
	Metadata      map[string]string `json:"metadata,omitempty" pb:"11"`
}

// PathRequest is what Stat, MakeDir and Remove take.
type PathRequest struct {
	Path string `json:"path,omitempty" pb:"1"`
}

// EntryResponse is what Stat, MakeDir and Move answer.
type EntryResponse struct {
	Entry *EntryInfo `json:"entry,omitempty" pb:"1"`
}

// MoveRequest renames a file or directory.
type MoveRequest struct {
	Source      string `json:"source,omitempty" pb:"1"`
	Destination string `json:"destination,omitempty" pb:"2"`
}

// ListDirRequest lists a directory, Depth levels deep; 0 means 1.
type ListDirRequest struct {
	Path  string     `json:"path,omitempty" pb:"1"`
	Depth rpc.Uint32 `json:"depth,omitempty" pb:"2"`
}

// ListDirResponse holds a directory's entries.
type ListDirResponse struct {
	Entries []*EntryInfo `json:"entries,omitempty" pb:"1"`
}

// WatchRequest is what WatchDir and CreateWatcher take.
type WatchRequest struct {
	Path               string `json:"path,omitempty" pb:"1"`
	Recursive          bool   `json:"recursive,omitempty" pb:"2"`
	IncludeEntry       bool   `json:"includeEntry,omitempty" pb:"3"`
	AllowNetworkMounts bool   `json:"allowNetworkMounts,omitempty" pb:"4"`
}

// EventType is the protocol's enum.
type EventType int32

// Kinds of change.
const (
	EventCreate EventType = 1
	EventWrite  EventType = 2
	EventRemove EventType = 3
	EventRename EventType = 4
	EventChmod  EventType = 5
)

var eventTypeNames = map[int32]string{
	0: "EVENT_TYPE_UNSPECIFIED", 1: "EVENT_TYPE_CREATE", 2: "EVENT_TYPE_WRITE",
	3: "EVENT_TYPE_REMOVE", 4: "EVENT_TYPE_RENAME", 5: "EVENT_TYPE_CHMOD",
}

// MarshalJSON writes the name.
func (t EventType) MarshalJSON() ([]byte, error) { return rpc.EnumToJSON(eventTypeNames, int32(t)) }

// UnmarshalJSON reads a name or a number.
func (t *EventType) UnmarshalJSON(data []byte) error {
	v, err := rpc.EnumFromJSON(eventTypeNames, data)
	*t = EventType(v)
	return err
}

// FilesystemEvent is one change; Name is relative to the watched directory.
type FilesystemEvent struct {
	Name  string     `json:"name,omitempty" pb:"1"`
	Type  EventType  `json:"type,omitempty" pb:"2"`
	Entry *EntryInfo `json:"entry,omitempty" pb:"3"`
}

// WatchStart is WatchDir's first event: the watch is in place.
type WatchStart struct{}

// WatchEvent is a oneof, streamed by WatchDir.
type WatchEvent struct {
	Start      *WatchStart      `json:"start,omitempty" pb:"1"`
	Filesystem *FilesystemEvent `json:"filesystem,omitempty" pb:"2"`
	KeepAlive  *KeepAlive       `json:"keepalive,omitempty" pb:"3"`
}

// WatcherID names a watcher that is polled; CreateWatcher answers it.
type WatcherID struct {
	WatcherID string `json:"watcherId,omitempty" pb:"1"`
}

// WatcherEvents holds the changes since the last poll.
type WatcherEvents struct {
	Events []*FilesystemEvent `json:"events,omitempty" pb:"1"`
}
