package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// QEMU's emulation of AMD's VMRUN, when it injects an external interrupt into the guest, notes the vector as the
// CPU's pending exception, delivers the interrupt itself, and never takes the note back. If the CPU then goes
// round QEMU's main loop before the guest's next exit, the vector is delivered a second time, whether or not the
// guest has interrupts enabled. On the instruction clock the CPU does so whenever one of QEMU's timers is due, and
// sooner or later the second delivery finds the guest's kernel in the middle of a seqlock's write section: its timer
// interrupt then waits for itself, for ever. Seen in 7.2 and 10.0; docs/decisions/0008 has the story.
//
// correct takes out the one store that leaves the note, in the memory of the QEMU about to run.

// injection is the machine code around that store in Debian's builds of QEMU 7.2 and 10.0 (helper_vmrun, in
// target/i386/tcg/sysemu/svm_helper.c). The -1 stand for displacements, which differ.
var injection = []int{
	0x41, 0x0f, 0xb6, 0xf4, // movzbl %r12b,%esi: the vector
	0x44, 0x89, 0xab, -1, -1, 0x00, 0x00, // mov %r13d,(env->error_code)
	0x89, 0xb3, -1, -1, 0xff, 0xff, // mov %esi,(cs->exception_index): the note
	0xc7, 0x83, -1, -1, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // movl $0,(env->exception_is_int)
	0x48, 0xc7, 0x83, -1, -1, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, // movq $-1,(env->exception_next_eip)
	0xf6, 0x05, -1, -1, -1, -1, 0x02, // testb $2,(qemu_loglevel)
	0x0f, 0x85, -1, -1, -1, -1, // jne: log it
	0xba, 0x01, 0x00, 0x00, 0x00, // mov $1,%edx
	0x48, 0x89, 0xdf, // mov %rbx,%rdi
	0xe8, // call do_interrupt_x86_hardirq
}

// noteAt is where in injection the store is.
const noteAt = 11

// noStore is an instruction as long as the store that does nothing.
var noStore = []byte{0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00}

var errUnknownEmulator = errors.New("this build of QEMU is not known and runs as it is: if it delivers a guest's interrupts " +
	"twice, guests in the lab will hang; use Debian's 7.2 or 10.0 (docs/decisions/0008)")

// findNote returns the file offset of the store in a QEMU program. The error is errUnknownEmulator if there is no
// such place or more than one.
func findNote(program []byte) (int64, error) {
	anchor := make([]byte, 7)
	for i := range anchor {
		anchor[i] = byte(injection[i])
	}
	found := -1
	for from := 0; ; {
		i := bytes.Index(program[from:], anchor)
		if i < 0 {
			break
		}
		if at := from + i; isInjection(program[at:]) {
			if found >= 0 {
				return 0, errUnknownEmulator
			}
			found = at
		}
		from += i + 1
	}
	if found < 0 {
		return 0, errUnknownEmulator
	}
	return int64(found) + noteAt, nil
}

func isInjection(code []byte) bool {
	if len(code) < len(injection) {
		return false
	}
	for i, want := range injection {
		if want >= 0 && code[i] != byte(want) {
			return false
		}
	}
	return true
}

// codeAddress returns where byte offset of the program at path is mapped executable, according to the text of a
// process's /proc/PID/maps.
func codeAddress(maps, path string, offset int64) (uintptr, error) {
	lines := bufio.NewScanner(strings.NewReader(maps))
	for lines.Scan() {
		// START-END PERMS OFFSET DEV INODE PATH, numbers in hexadecimal: proc_pid_maps(5).
		f := strings.Fields(lines.Text())
		if len(f) < 6 || !strings.HasSuffix(lines.Text(), path) || !strings.Contains(f[1], "x") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		at, err3 := strconv.ParseInt(f[2], 16, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return 0, fmt.Errorf("read the emulator's memory map: %w", err)
		}
		if offset >= at && offset < at+int64(end-start) {
			return uintptr(start) + uintptr(offset-at), nil
		}
	}
	return 0, fmt.Errorf("find byte %#x of %s in its memory: it is not mapped as code", offset, path)
}

// correct changes the QEMU that pid has just been made to run and that the calling thread traces. The error is
// errUnknownEmulator if it is another program than those known; then nothing was changed.
func correct(pid int) error {
	proc := fmt.Sprintf("/proc/%d/", pid)
	program, err := os.ReadFile(proc + "exe")
	if err != nil {
		return fmt.Errorf("read the emulator's program: %w", err)
	}
	offset, err := findNote(program)
	if err != nil {
		return err
	}
	path, err := os.Readlink(proc + "exe")
	if err != nil {
		return fmt.Errorf("find the emulator's program: %w", err)
	}
	maps, err := os.ReadFile(proc + "maps")
	if err != nil {
		return fmt.Errorf("read the emulator's memory map: %w", err)
	}
	addr, err := codeAddress(string(maps), path, offset)
	if err != nil {
		return err
	}
	if _, err := unix.PtracePokeText(pid, addr, noStore); err != nil {
		return fmt.Errorf("correct the emulator in memory: %w", err)
	}
	return nil
}

// letGo corrects a program started with SysProcAttr.Ptrace and lets it run. It must be called on the thread that
// started it. An unknown program runs as it is, and the console says so.
func letGo(pid int, console *os.File) error {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for the emulator's start: %w", err)
		}
		break
	}
	if !status.Stopped() {
		return fmt.Errorf("the emulator ended before it began (status %#x)", status)
	}
	if err := correct(pid); errors.Is(err, errUnknownEmulator) {
		fmt.Fprintln(console, "cella:", err)
	} else if err != nil {
		return err
	}
	if err := unix.PtraceDetach(pid); err != nil {
		return fmt.Errorf("let the emulator run: %w", err)
	}
	return nil
}
