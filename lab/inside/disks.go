package inside

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// DisksVariable is what the host tells the number of disks by. The kernel puts words of its command line that it
// does not know into the environment of the first process.
const DisksVariable = "CELLA_LAB_DISKS"

// disks are the lab's block devices. Their numbers depend on where in memory they lie, so they are told apart by
// what is on them.
type disks struct {
	root  string // ext4
	state string // XFS
	in    string // a tar stream of files to copy in; may be empty
}

// findDisks waits for all disks, whose drivers look for them in the background.
func findDisks() (disks, error) {
	want, err := strconv.Atoi(os.Getenv(DisksVariable))
	if err != nil {
		return disks{}, fmt.Errorf("read the number of disks: %w", err)
	}
	const patience = 10 * time.Second
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		found, err := filepath.Glob("/dev/pmem*")
		if err != nil {
			return disks{}, err
		}
		if len(found) == want {
			return identify(found)
		}
		if time.Since(start) > patience {
			return disks{}, fmt.Errorf("%d disks of %d after %v", len(found), want, patience)
		}
	}
}

func identify(devices []string) (disks, error) {
	var d disks
	for _, dev := range devices {
		head, err := readHead(dev)
		if err != nil {
			return d, err
		}
		switch {
		case string(head[:4]) == "XFSB":
			d.state = dev
		case head[0x438] == 0x53 && head[0x439] == 0xef: // ext4's s_magic, in its superblock at 1024
			d.root = dev
		case string(head[257:262]) == "ustar":
			d.in = dev
		default:
			return d, fmt.Errorf("disk %s holds nothing known", dev)
		}
	}
	if d.root == "" || d.state == "" {
		return d, errors.New("the root disk or the state disk is missing")
	}
	return d, nil
}

func readHead(dev string) ([]byte, error) {
	f, err := os.Open(dev)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, 2048)
	_, err = io.ReadFull(f, head)
	return head, err
}
