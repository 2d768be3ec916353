package accounts

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "passwd", "root:x:0:0:root:/root:/bin/bash\nbroken line\n"+
		"user:x:1000:1000::/home/user:/bin/sh\nuser:x:7:7::/second:/second\n")
	write(t, dir, "group", "root:x:0:\nuser:x:1000:\nsudo:x:27:user,nobody\ndocker:x:99:user\n")
	d := Open(dir)
	want := &User{Name: "user", UID: 1000, GID: 1000, Groups: []uint32{1000, 27, 99}, Home: "/home/user", Shell: "/bin/sh"}
	for _, name := range []string{"user", "1000"} {
		got, err := d.Lookup(name)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Lookup(%q) = %+v, %v; want %+v", name, got, err, want)
		}
	}
	_, err := d.Lookup("root123")
	if e := UnknownUserError(""); !errors.As(err, &e) || err.Error() != "invalid username: 'root123'" {
		t.Errorf("unknown user: %v", err)
	}
	if got := d.GroupName(27); got != "sudo" {
		t.Errorf("GroupName(27) = %q", got)
	}
	if got := d.UserName(4711); got != "4711" {
		t.Errorf("UserName(4711) = %q", got)
	}
}

func TestNewUserIsSeen(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "passwd", "root:x:0:0:root:/root:/bin/bash\n")
	d := Open(dir)
	if _, err := d.Lookup("late"); err == nil {
		t.Fatal("late exists before it was added")
	}
	write(t, dir, "passwd", "root:x:0:0:root:/root:/bin/bash\nlate:x:5:5::/:/bin/sh\n")
	if _, err := d.Lookup("late"); err != nil {
		t.Fatal(err)
	}
}
