// Package accounts reads /etc/passwd and /etc/group. os/user does not tell the shell, and reads the files
// anew for every question; here an answer costs two stat calls while the files stay as they are.
package accounts

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A User is a line of passwd, with the groups it belongs to.
type User struct {
	Name     string
	UID, GID uint32
	// Groups are the supplementary groups, GID included.
	Groups []uint32
	Home   string
	Shell  string
}

// UnknownUserError says that there is no such user.
type UnknownUserError string

func (e UnknownUserError) Error() string { return fmt.Sprintf("invalid username: '%s'", string(e)) }

// A Database answers questions from dir/passwd and dir/group. It is safe for concurrent use.
type Database struct {
	dir string

	mu            sync.Mutex
	passwd, group stamp
	users         map[string]*User
	userNames     map[uint32]string
	groupNames    map[uint32]string
}

// stamp tells whether a file has changed since it was read.
type stamp struct {
	size  int64
	mtime int64
}

// Open uses the files in dir, normally /etc. They are read when first needed.
func Open(dir string) *Database { return &Database{dir: dir} }

// Lookup finds a user by name, or by number if the name is one.
func (d *Database) Lookup(name string) (*User, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refresh(); err != nil {
		return nil, err
	}
	if u, ok := d.users[name]; ok {
		return u, nil
	}
	if uid, err := strconv.ParseUint(name, 10, 32); err == nil {
		if u, ok := d.users[d.userNames[uint32(uid)]]; ok {
			return u, nil
		}
	}
	return nil, UnknownUserError(name)
}

// UserName is the name of a user, or its number if it has none.
func (d *Database) UserName(uid uint32) string {
	return d.name(uid, func() map[uint32]string { return d.userNames })
}

// GroupName is the name of a group, or its number if it has none.
func (d *Database) GroupName(gid uint32) string {
	return d.name(gid, func() map[uint32]string { return d.groupNames })
}

func (d *Database) name(id uint32, names func() map[uint32]string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refresh() == nil {
		if name, ok := names()[id]; ok {
			return name
		}
	}
	return strconv.FormatUint(uint64(id), 10)
}

// refresh reads the files again if they have changed. The caller holds mu.
func (d *Database) refresh() error {
	passwd, err := stampOf(filepath.Join(d.dir, "passwd"))
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	group, err := stampOf(filepath.Join(d.dir, "group"))
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read groups: %w", err)
	}
	if d.users != nil && passwd == d.passwd && group == d.group {
		return nil
	}
	d.users, d.userNames, d.groupNames = map[string]*User{}, map[uint32]string{}, map[uint32]string{}
	if err := eachLine(filepath.Join(d.dir, "passwd"), 7, d.addUser); err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	if err := eachLine(filepath.Join(d.dir, "group"), 4, d.addGroup); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read groups: %w", err)
	}
	d.passwd, d.group = passwd, group
	return nil
}

// addUser takes name:password:uid:gid:gecos:home:shell.
func (d *Database) addUser(f []string) {
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil {
		return
	}
	if _, taken := d.users[f[0]]; taken {
		return // the first line counts, as in glibc
	}
	u := &User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: f[6]}
	u.Groups = []uint32{u.GID}
	d.users[u.Name] = u
	if _, taken := d.userNames[u.UID]; !taken {
		d.userNames[u.UID] = u.Name
	}
}

// addGroup takes name:password:gid:member,member.
func (d *Database) addGroup(f []string) {
	gid, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return
	}
	if _, taken := d.groupNames[uint32(gid)]; !taken {
		d.groupNames[uint32(gid)] = f[0]
	}
	for _, member := range strings.Split(f[3], ",") {
		if u, ok := d.users[member]; ok && !slices.Contains(u.Groups, uint32(gid)) {
			u.Groups = append(u.Groups, uint32(gid))
		}
	}
}

// eachLine calls add with the fields of each well-formed line.
func eachLine(path string, fields int, add func([]string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if parts := strings.Split(s.Text(), ":"); len(parts) >= fields && parts[0] != "" {
			add(parts)
		}
	}
	return s.Err()
}

func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	return stampFrom(info), nil
}

func stampFrom(info fs.FileInfo) stamp {
	return stamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
}
