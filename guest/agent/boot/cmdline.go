package boot

import (
	"strings"

	"golang.org/x/sys/unix"
)

// options are what the kernel command line says to the agent.
type options struct {
	// root is the disk that becomes /: cella.root=/dev/vda.
	root string
	// flags and data are the mount options of cella.rootflags=noatime,discard, as mount(2) takes them.
	flags uintptr
	data  string
	// hostname is cella.hostname.
	hostname string
	// net is cella.net, see network.
	net network
}

// mountFlags are the mount options that mount(2) takes as bits; all others go to the file system.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "noatime": unix.MS_NOATIME, "relatime": unix.MS_RELATIME,
	"nodiratime": unix.MS_NODIRATIME, "lazytime": unix.MS_LAZYTIME, "sync": unix.MS_SYNCHRONOUS,
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "defaults": 0,
}

// parseCmdline reads /proc/cmdline. Words that aren't the agent's are the kernel's.
func parseCmdline(line string) options {
	o := options{root: "/dev/vda", flags: unix.MS_NOATIME, hostname: "cella"}
	for _, word := range strings.Fields(line) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "cella.root":
			o.root = value
		case "cella.hostname":
			o.hostname = value
		case "cella.net":
			o.net = parseNetwork(value)
		case "cella.rootflags":
			o.flags, o.data = parseMountOptions(value)
		}
	}
	return o
}

func parseMountOptions(list string) (flags uintptr, data string) {
	var rest []string
	for _, opt := range strings.Split(list, ",") {
		if bit, ok := mountFlags[opt]; ok {
			flags |= bit
		} else if opt != "" {
			rest = append(rest, opt)
		}
	}
	return flags, strings.Join(rest, ",")
}
