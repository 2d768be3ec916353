package lab

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// The code around the store in Debian's builds, from `objdump -d`.
const (
	qemu72 = "410fb6f4 4489ab80330000 89b354efffff c7838433000000000000 48c78388330000ffffffff" +
		"f605ba45b60002 0f856c010000 ba01000000 4889df e8a74f0500"
	qemu100 = "410fb6f4 4489abe0330000 89b310d7ffff c783e433000000000000 48c783e8330000ffffffff" +
		"f605ece23d0102 0f85c1000000 ba01000000 4889df e8b9ab0600"
)

func code(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFindNote(t *testing.T) {
	before := bytes.Repeat([]byte{0x90}, 100)
	corrected := code(t, qemu72)
	copy(corrected[noteAt:], noStore)
	tests := []struct {
		name    string
		program []byte
		want    int64 // 0: unknown
	}{
		{"7.2", append(before, code(t, qemu72)...), 111},
		{"10.0", append(before, code(t, qemu100)...), 111},
		{"behind a beginning of it", append(code(t, "410fb6f4 4489ab"), code(t, qemu72)...), 18},
		{"another program", before, 0},
		{"cut off", code(t, qemu72)[:50], 0},
		{"twice", append(code(t, qemu72), code(t, qemu100)...), 0},
		{"already without", corrected, 0},
	}
	for _, tt := range tests {
		got, err := findNote(bytes.Clone(tt.program))
		if got != tt.want || (tt.want == 0) != errors.Is(err, errUnknownEmulator) {
			t.Errorf("%s: %d, %v; want %d", tt.name, got, err, tt.want)
		}
	}
	store := code(t, qemu72)[noteAt : noteAt+len(noStore)]
	if want := code(t, "89b354efffff"); !bytes.Equal(store, want) {
		t.Errorf("the store is %x, want %x", store, want)
	}
}

func TestCodeAddress(t *testing.T) {
	const maps = `559a4d589000-559a4d990000 r--p 00000000 fe:00 123 /usr/bin/qemu-system-x86_64
559a4d990000-559a4df2e000 r-xp 00407000 fe:00 123 /usr/bin/qemu-system-x86_64
559a4df2e000-559a4e4a2000 r--p 009a5000 fe:00 123 /usr/bin/qemu-system-x86_64
7f0000000000-7f0000001000 r-xp 00407000 fe:00 124 /usr/lib/ld.so
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0 [vdso]
`
	const path = "/usr/bin/qemu-system-x86_64"
	if got, err := codeAddress(maps, path, 0x65b284); got != 0x559a4dbe4284 || err != nil {
		t.Errorf("in the code: %#x, %v; want 0x559a4dbe4284", got, err)
	}
	for _, offset := range []int64{0x406fff, 0x9a5000} {
		if got, err := codeAddress(maps, path, offset); err == nil {
			t.Errorf("byte %#x, which is not code: %#x, want an error", offset, got)
		}
	}
}
