package bench

import (
	"bufio"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"

	"cella.dev/cella/guest/wire"
)

func TestInitAgent(t *testing.T) {
	tests := []struct{ name, reply, want string }{
		{"accepted", `{"ok":true,"version":"0.6.13"}` + "\n", ""},
		{"refused", `{"ok":false,"error":"no entropy"}` + "\n", "the agent refused the handshake: no entropy"},
		{"not JSON", "hello\n", "decode the handshake's answer"},
		{"cut", `{"ok":`, "read the handshake's answer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			host, guest := net.Pipe()
			defer host.Close()
			asked := make(chan wire.ControlRequest, 1)
			go func() {
				defer guest.Close()
				var request wire.ControlRequest
				line, _ := bufio.NewReader(guest).ReadBytes('\n')
				_ = json.Unmarshal(line, &request) // what is wrong shows in the assertions below
				asked <- request
				_, _ = guest.Write([]byte(test.reply))
			}()
			err := initAgent(t.Context(), host)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if request := <-asked; request.Op != wire.OpInit || request.Init == nil || len(request.Init.Entropy) != 64 || request.Init.UnixNano == 0 {
				t.Errorf("asked for %+v", request)
			}
		})
	}
}

func TestQEMUCommandLine(t *testing.T) {
	q := &QEMU{Kernel: "/k", Initrd: "/i", Disk: "/d", Append: DefaultAppend, MemoryMiB: 256}
	args := strings.Join(q.args(77), " ")
	for _, want := range []string{"-M microvm,acpi=on,", ",isa-serial=off ", "-serial null", "-kernel /k -initrd /i", "snapshot=on,file=/d", "vhost-vsock-device,guest-cid=77", "-m 256"} {
		if !strings.Contains(args, want) {
			t.Errorf("%q is missing from %s", want, args)
		}
	}
	q.Console = "/c"
	args = strings.Join(q.args(77), " ")
	if !strings.Contains(args, "-serial file:/c") || !strings.Contains(args, "console=ttyS0 ") || strings.Contains(args, "nr_uarts=0") {
		t.Errorf("no console in %s", args)
	}
}

func TestContainerIsConfined(t *testing.T) {
	data, err := json.Marshal(ociConfig("/root", []string{"/bin/bash"}))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Process struct {
			User            struct{ UID int }
			NoNewPrivileges bool
			Capabilities    any
		}
		Root  struct{ Readonly bool }
		Linux struct{ Namespaces []struct{ Type string } }
	}
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	var namespaces []string
	for _, n := range config.Linux.Namespaces {
		namespaces = append(namespaces, n.Type)
	}
	slices.Sort(namespaces)
	if !config.Root.Readonly || !config.Process.NoNewPrivileges || config.Process.User.UID != 1000 || config.Process.Capabilities != nil ||
		strings.Join(namespaces, " ") != "ipc mount network pid uts" {
		t.Errorf("got %s", data)
	}
}

func TestSelect(t *testing.T) {
	all := Scenarios(Sizes{})
	got, err := Select(all, []string{CreateExec, Density})
	if err != nil || len(got) != 4 {
		t.Errorf("got %d scenarios, %v; want three of create_exec and density", len(got), err)
	}
	if _, err := Select(all, []string{"nosuch"}); err == nil || !strings.Contains(err.Error(), `no scenario "nosuch"; there are cold_boot, create_exec`) {
		t.Errorf("got %v", err)
	}
	if _, err := SelectArms([]Arm{&Crun{}}, []string{"runsc"}); err == nil || !strings.Contains(err.Error(), `no arm "runsc"`) {
		t.Errorf("got %v", err)
	}
}

func TestServerArmWithoutServerIsSkipped(t *testing.T) {
	s := &Server{Arm: ArmCella}
	for _, scenario := range []string{CreateExec, Density, Exec, FileWrite, FileRead} {
		_, err := s.Work(t.Context(), scenario)
		if u, ok := err.(*Unavailable); !ok || !strings.Contains(u.Reason, "--serve") {
			t.Errorf("%s: %v, want unavailable with what to do", scenario, err)
		}
	}
}
