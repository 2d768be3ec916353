package reports

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Env is the fingerprint of the machine a run was made on.
type Env struct {
	// Class is the SHA-256 of every other field but Load1: runs on hosts of one class
	// can be compared.
	Class string `json:"class"`
	// Kind is hardware (bare metal or a machine of a hypervisor) or lab (an emulated machine).
	Kind       string            `json:"kind"`
	CPU        CPU               `json:"cpu"`
	Kernel     string            `json:"kernel"`
	Cmdline    string            `json:"cmdline"`
	Mitigation map[string]string `json:"mitigations"`
	// KVM holds the parameters of kvm, kvm_intel and kvm_amd by "module.parameter".
	KVM        map[string]string `json:"kvm"`
	THP        string            `json:"thp"`
	Filesystem string            `json:"filesystem"`
	// MemoryMiB is MemTotal rounded to 64 MiB, so that a kernel's own share does not change the class.
	MemoryMiB int     `json:"memory_mib"`
	Go        string  `json:"go"`
	Load1     float64 `json:"load1"`
}

// CPU is what /proc/cpuinfo says of the first processor.
type CPU struct {
	Model       string `json:"model"`
	Microcode   string `json:"microcode"`
	Count       int    `json:"count"`
	FlagsSHA256 string `json:"flags_sha256"`
	// Virtual is true where a hypervisor announces itself to the machine.
	Virtual bool `json:"virtual"`
}

// Collect takes the fingerprint of this machine. Storage is a directory of the file system that holds
// disks; lab says that the machine is emulated. What cannot be read stays empty: a fingerprint never fails.
func Collect(storage string, lab bool) Env {
	env := collect(os.DirFS("/"), lab)
	env.Filesystem = filesystem(storage)
	env.Class = env.class()
	return env
}

func collect(root fs.FS, lab bool) Env {
	env := Env{Kind: "hardware", Go: runtime.Version(), CPU: cpu(read(root, "proc/cpuinfo"))}
	if lab {
		env.Kind = "lab"
	}
	env.Kernel = read(root, "proc/sys/kernel/osrelease")
	env.Cmdline = cmdline(read(root, "proc/cmdline"))
	env.Mitigation = readDir(root, "sys/devices/system/cpu/vulnerabilities", "")
	env.KVM = map[string]string{}
	for _, module := range []string{"kvm", "kvm_intel", "kvm_amd"} {
		for name, value := range readDir(root, path.Join("sys/module", module, "parameters"), module+".") {
			env.KVM[name] = value
		}
	}
	env.THP = selected(read(root, "sys/kernel/mm/transparent_hugepage/enabled"))
	env.MemoryMiB = memoryMiB(read(root, "proc/meminfo"))
	if load := strings.Fields(read(root, "proc/loadavg")); len(load) > 0 {
		env.Load1, _ = strconv.ParseFloat(load[0], 64)
	}
	return env
}

// cmdline leaves out what the lab tells its own init, which differs with the files that a run takes in.
func cmdline(s string) string {
	words := slices.DeleteFunc(strings.Fields(s), func(word string) bool { return strings.HasPrefix(word, "CELLA_") })
	return strings.Join(words, " ")
}

// class hashes everything but the load.
func (e Env) class() string {
	e.Class, e.Load1 = "", 0
	data, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("encode fingerprint: %v", err)) // strings, ints and maps of strings always encode
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func cpu(cpuinfo string) CPU {
	var c CPU
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "processor":
			c.Count++
		case c.Count > 1: // every processor repeats the rest
		case key == "model name":
			c.Model = value
		case key == "microcode":
			c.Microcode = value
		case key == "flags":
			flags := strings.Fields(value)
			slices.Sort(flags)
			sum := sha256.Sum256([]byte(strings.Join(flags, " ")))
			c.FlagsSHA256 = hex.EncodeToString(sum[:])
			c.Virtual = slices.Contains(flags, "hypervisor")
		}
	}
	return c
}

func memoryMiB(meminfo string) int {
	for line := range strings.Lines(meminfo) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, _ := strconv.Atoi(fields[1])
			return (kib/1024 + 32) / 64 * 64
		}
	}
	return 0
}

// selected picks the word in brackets of a sysfs choice such as "always [madvise] never".
func selected(choices string) string {
	_, rest, _ := strings.Cut(choices, "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}

func read(root fs.FS, name string) string {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func readDir(root fs.FS, dir, prefix string) map[string]string {
	out := map[string]string{}
	entries, _ := fs.ReadDir(root, dir)
	for _, e := range entries {
		out[prefix+e.Name()] = read(root, path.Join(dir, e.Name()))
	}
	return out
}

// magics are the file systems that storage is likely to be on (linux/magic.h).
var magics = map[int64]string{
	0x58465342: "xfs", 0x9123683e: "btrfs", 0xef53: "ext4", 0x01021994: "tmpfs", 0x794c7630: "overlay", 0x858458f6: "ramfs",
}

func filesystem(dir string) string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return ""
	}
	if name, ok := magics[int64(st.Type)]; ok {
		return name
	}
	return fmt.Sprintf("%#x", st.Type)
}
