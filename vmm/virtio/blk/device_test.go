package blk_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cella.dev/cella/vmm/virtio/blk"
	"cella.dev/cella/vmm/virtio/mmio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

const (
	flush       = 1 << 9
	discard     = 1 << 13
	writeZeroes = 1 << 14
	diskSize    = 1 << 20
)

// guest is a disk with a driver.
type guest struct {
	*virtiotest.Driver
	tb   testing.TB
	dev  *blk.Device
	file *os.File
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9) + 1
	}
	return b
}

func newFile(tb testing.TB) *os.File {
	tb.Helper()
	f, err := os.Create(filepath.Join(tb.TempDir(), "disk"))
	virtiotest.Must(tb, err)
	tb.Cleanup(func() { f.Close() })
	_, err = f.Write(pattern(diskSize))
	virtiotest.Must(tb, err)
	return f
}

func newGuest(tb testing.TB, f *os.File, cfg blk.Config) *guest {
	tb.Helper()
	dev, err := blk.New(f, cfg)
	virtiotest.Must(tb, err)
	mem, irq := virtiotest.NewMemory(1<<22), virtiotest.NewInterrupt()
	d := virtiotest.NewDriver(mmio.New(mem, dev, irq), mem, irq, 0x1000)
	return &guest{Driver: d, tb: tb, dev: dev, file: f}
}

func (g *guest) init(features uint64) *guest {
	g.tb.Helper()
	virtiotest.Must(g.tb, g.Init(features|virtiotest.Version1, 1, 256))
	return g
}

func header(kind uint32, sector uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, kind)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint64(b, sector)
}

// do sends one request and returns its status, what the device wrote to in, and the used length.
func (g *guest) do(hdr, out []byte, in int) (status byte, data []byte, used uint32) {
	g.tb.Helper()
	h, st := g.Alloc(len(hdr)), g.Alloc(1)
	copy(g.Mem.RAM[h:], hdr)
	g.Mem.RAM[st] = 0xee
	bufs := []virtiotest.Buffer{{Addr: h, Len: uint32(len(hdr))}}
	if len(out) > 0 {
		o := g.Alloc(len(out))
		copy(g.Mem.RAM[o:], out)
		// Two pieces, cut in the middle of a sector.
		cut := uint32(len(out) / 3)
		bufs = append(bufs, virtiotest.Buffer{Addr: o, Len: cut}, virtiotest.Buffer{Addr: o + uint64(cut), Len: uint32(len(out)) - cut})
	}
	i := g.Alloc(in)
	if in > 0 {
		cut := uint32(in / 3)
		bufs = append(bufs, virtiotest.Buffer{Addr: i, Len: cut, Write: true},
			virtiotest.Buffer{Addr: i + uint64(cut), Len: uint32(in) - cut, Write: true})
	}
	bufs = append(bufs, virtiotest.Buffer{Addr: st, Len: 1, Write: true})
	q := g.Queues[0]
	head := q.Add(bufs...)
	q.Kick()
	u, ok := q.Take()
	if !ok || u.Head != head {
		g.tb.Fatalf("request was not used: got %+v, %t, want head %d", u, ok, head)
	}
	q.Arm()
	return g.Mem.RAM[st], g.Mem.RAM[i : i+uint64(in)], u.Len
}

func rangeOf(sector uint64, n, flags uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, sector)
	b = binary.LittleEndian.AppendUint32(b, n)
	return binary.LittleEndian.AppendUint32(b, flags)
}

func TestConfigurationSpace(t *testing.T) {
	g := newGuest(t, newFile(t), blk.Config{BlockSize: 4096})
	want := make([]byte, 64)
	le := binary.LittleEndian
	le.PutUint64(want[0:], diskSize/512)
	le.PutUint32(want[12:], 254)
	le.PutUint32(want[20:], 4096)
	le.PutUint32(want[36:], 1<<21)
	le.PutUint32(want[40:], 16)
	le.PutUint32(want[44:], 8)
	le.PutUint32(want[48:], 1<<21)
	le.PutUint32(want[52:], 16)
	want[56] = 1
	if got := g.Config(0, 64); !bytes.Equal(got, want) {
		t.Errorf("config space is %x, want %x", got, want)
	}
	if got := g.Config(1<<20, 8); !bytes.Equal(got, make([]byte, 8)) {
		t.Errorf("beyond the config space is %x, want zeros", got)
	}
	if got, want := g.Offered(), uint64(1<<2|1<<6|flush|discard|writeZeroes)|virtiotest.Version1|virtiotest.EventIdx|virtiotest.Indirect; got != want {
		t.Errorf("features %#x, want %#x", got, want)
	}
}

func TestRequests(t *testing.T) {
	sector := func(i int) []byte { return bytes.Repeat([]byte{byte(i) + 1}, 512) }
	for _, tt := range []struct {
		name     string
		cfg      blk.Config
		hdr, out []byte
		in       int
		status   byte
		data     []byte
		used     uint32
	}{
		{name: "read", hdr: header(0, 3), in: 1024, data: append(sector(3), sector(4)...), used: 1025},
		{name: "read of nothing", hdr: header(0, 3), used: 1},
		{name: "read of the last sector", hdr: header(0, diskSize/512-1), in: 512, data: sector(2047), used: 513},
		{name: "read beyond the end", hdr: header(0, diskSize/512-1), in: 1024, status: 1, data: make([]byte, 1024)},
		{name: "read at the greatest sector", hdr: header(0, 1<<64-1), in: 512, status: 1, data: make([]byte, 512)},
		{name: "read of half a sector", hdr: header(0, 0), in: 256, status: 1, data: make([]byte, 256)},
		{name: "write", hdr: header(1, 5), out: bytes.Repeat([]byte{0xaa}, 1024), used: 1},
		{name: "write beyond the end", hdr: header(1, diskSize/512), out: make([]byte, 512), status: 1},
		{name: "write to a read-only disk", cfg: blk.Config{ReadOnly: true}, hdr: header(1, 0), out: make([]byte, 512), status: 1},
		{name: "flush", hdr: header(4, 0), used: 1},
		{name: "identify", cfg: blk.Config{Serial: "cella-rootfs"}, hdr: header(8, 0), in: 20,
			data: append([]byte("cella-rootfs"), make([]byte, 8)...), used: 21},
		{name: "identify with a long serial", cfg: blk.Config{Serial: "0123456789abcdefghijklmn"}, hdr: header(8, 0), in: 20,
			data: []byte("0123456789abcdefghij"), used: 21},
		{name: "unknown type", hdr: header(99, 0), status: 2},
		{name: "discard", hdr: header(11, 0), out: rangeOf(8, 8, 0), used: 1},
		{name: "discard with unmap flag", hdr: header(11, 0), out: rangeOf(8, 8, 1), status: 2},
		{name: "discard beyond the end", hdr: header(11, 0), out: rangeOf(diskSize/512, 1, 0), status: 1},
		{name: "discard without a segment", hdr: header(11, 0), status: 1},
		{name: "discard of half a segment", hdr: header(11, 0), out: rangeOf(8, 8, 0)[:8], status: 1},
		{name: "discard with 17 segments", hdr: header(11, 0), out: bytes.Repeat(rangeOf(8, 8, 0), 17), status: 1},
		{name: "discard on a read-only disk", cfg: blk.Config{ReadOnly: true}, hdr: header(11, 0), out: rangeOf(0, 1, 0), status: 1},
		{name: "write zeroes", hdr: header(13, 0), out: rangeOf(8, 8, 0), used: 1},
		{name: "write zeroes, may unmap", hdr: header(13, 0), out: rangeOf(8, 8, 1), used: 1},
		{name: "write zeroes with an unknown flag", hdr: header(13, 0), out: rangeOf(8, 8, 2), status: 2},
		{name: "write zeroes of more than the limit", hdr: header(13, 0), out: rangeOf(0, 1<<21+1, 0), status: 1},
	} {
		for _, mode := range []struct {
			name     string
			features uint64
		}{{"direct", 0}, {"indirect, event index", virtiotest.Indirect | virtiotest.EventIdx}} {
			t.Run(tt.name+"/"+mode.name, func(t *testing.T) {
				g := newGuest(t, newFile(t), tt.cfg).init(flush | mode.features)
				status, data, used := g.do(tt.hdr, tt.out, tt.in)
				if status != tt.status || used != tt.used || !bytes.Equal(data, tt.data) {
					t.Errorf("got status %d, used %d, data %x; want %d, %d, %x", status, used, data, tt.status, tt.used, tt.data)
				}
			})
		}
	}
}

func TestWritesReachTheFile(t *testing.T) {
	for _, tt := range []struct {
		name  string
		hdr   []byte
		out   []byte
		first byte // of sectors 8 to 15 afterwards
	}{
		{"write", header(1, 8), bytes.Repeat([]byte{0x5a}, 8*512), 0x5a},
		{"discard", header(11, 0), rangeOf(8, 8, 0), 0},
		{"write zeroes", header(13, 0), rangeOf(8, 8, 0), 0},
		{"write zeroes, may unmap", header(13, 0), append(rangeOf(8, 4, 1), rangeOf(12, 4, 0)...), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFile(t)
			g := newGuest(t, f, blk.Config{}).init(0)
			if status, _, _ := g.do(tt.hdr, tt.out, 0); status != 0 {
				t.Fatalf("status %d", status)
			}
			want := pattern(diskSize)
			copy(want[8*512:16*512], bytes.Repeat([]byte{tt.first}, 8*512))
			got, err := os.ReadFile(f.Name())
			virtiotest.Must(t, err)
			if !bytes.Equal(got, want) {
				t.Error("the file is not what was written")
			}
		})
	}
}

func TestDiscardFreesBlocks(t *testing.T) {
	f := newFile(t)
	g := newGuest(t, f, blk.Config{}).init(0)
	if status, _, _ := g.do(header(11, 0), rangeOf(0, diskSize/512, 0), 0); status != 0 {
		t.Fatalf("status %d", status)
	}
	var st unix.Stat_t
	virtiotest.Must(t, unix.Fstat(int(f.Fd()), &st))
	if st.Blocks != 0 || st.Size != diskSize {
		t.Errorf("file has %d blocks and size %d after a discard of all, want 0 and %d", st.Blocks, st.Size, diskSize)
	}
}

func TestHostErrorsBecomeIOErr(t *testing.T) {
	t.Run("file shrank", func(t *testing.T) {
		f := newFile(t)
		g := newGuest(t, f, blk.Config{}).init(0)
		virtiotest.Must(t, f.Truncate(512))
		if status, _, used := g.do(header(0, 0), nil, 1024); status != 1 || used != 512 {
			t.Errorf("status %d, used %d, want IOERR and the 512 bytes there were", status, used)
		}
	})
	t.Run("no space", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
		virtiotest.Must(t, err)
		defer full.Close()
		f := newFile(t)
		g := newGuest(t, f, blk.Config{}).init(flush)
		// The device keeps its descriptor; put one on which every write gives ENOSPC in its place.
		virtiotest.Must(t, unix.Dup3(int(full.Fd()), int(f.Fd()), unix.O_CLOEXEC))
		if status, _, _ := g.do(header(1, 0), make([]byte, 512), 0); status != 1 {
			t.Errorf("status %d, want IOERR", status)
		}
	})
}

func TestUnanswerableChainsAreReturned(t *testing.T) {
	g := newGuest(t, newFile(t), blk.Config{}).init(0)
	q, buf := g.Queues[0], g.Alloc(64)
	for _, bufs := range [][]virtiotest.Buffer{
		{{Addr: buf, Len: 16}},
		{{Addr: buf, Len: 15}, {Addr: buf, Len: 1, Write: true}},
		{{Addr: buf, Len: 0, Write: true}},
	} {
		q.Add(bufs...)
		q.Kick()
		if u, ok := q.Take(); !ok || u.Len != 0 {
			t.Errorf("chain %+v: used %+v, %t, want an empty answer", bufs, u, ok)
		}
	}
	if n := g.dev.Stats.Malformed.Load(); n != 3 {
		t.Errorf("%d malformed requests counted, want 3", n)
	}
}

func TestOneInterruptForABatch(t *testing.T) {
	g := newGuest(t, newFile(t), blk.Config{}).init(virtiotest.EventIdx | virtiotest.Indirect)
	q, hdr, data := g.Queues[0], g.Alloc(16), g.Alloc(513)
	copy(g.Mem.RAM[hdr:], header(0, 0))
	for range 31 {
		q.Add(virtiotest.Buffer{Addr: hdr, Len: 16}, virtiotest.Buffer{Addr: data, Len: 513, Write: true})
	}
	q.Kick()
	if n := g.IRQ.Count.Load(); n != 1 {
		t.Errorf("%d interrupts for 31 requests in one notification, want 1", n)
	}
	if q.Kicks != 1 {
		t.Errorf("%d kicks", q.Kicks)
	}
}

func TestStateRefusesAnotherDisk(t *testing.T) {
	state, err := newGuest(t, newFile(t), blk.Config{}).dev.Save()
	virtiotest.Must(t, err)
	small := newFile(t)
	virtiotest.Must(t, small.Truncate(diskSize/2))
	for _, tt := range []struct {
		name  string
		file  *os.File
		cfg   blk.Config
		state []byte
		ok    bool
	}{
		{"the same", newFile(t), blk.Config{}, state, true},
		{"smaller", small, blk.Config{}, state, false},
		{"read-only", newFile(t), blk.Config{ReadOnly: true}, state, false},
		{"cut short", newFile(t), blk.Config{}, state[:9], false},
		{"empty", newFile(t), blk.Config{}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := newGuest(t, tt.file, tt.cfg).dev.Restore(tt.state); (err == nil) != tt.ok {
				t.Errorf("restore: %v, want success %t", err, tt.ok)
			}
		})
	}
}

func TestNewRefusesSizes(t *testing.T) {
	f := newFile(t)
	virtiotest.Must(t, f.Truncate(513))
	if _, err := blk.New(f, blk.Config{}); err == nil {
		t.Error("a disk of 513 bytes was accepted")
	}
	virtiotest.Must(t, f.Truncate(0))
	if _, err := blk.New(f, blk.Config{}); err == nil {
		t.Error("an empty disk was accepted")
	}
	virtiotest.Must(t, f.Truncate(512))
	if _, err := blk.New(f, blk.Config{BlockSize: 1000}); err == nil {
		t.Error("a block size of 1000 was accepted")
	}
}
