package testnet

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// NewWorld connects the caller's namespace, as the host, with a world by the device up0. Close it with CloseWorld.
func NewWorld() (*Namespace, error) {
	ns, err := NewNamespace()
	if err != nil {
		return nil, err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "w0", PeerNamespace: netlink.NsFd(ns.fd)}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, errors.Join(fmt.Errorf("connect host and world: %w", err), ns.Close())
	}
	err = ns.Do(func() error { return errors.Join(AddAddr("w0", World+"/24"), AddAddr("lo", World2+"/32")) })
	err = errors.Join(err, AddAddr("up0", Uplink+"/24"), addDefaultRoute("up0", World))
	if err != nil {
		return nil, errors.Join(err, CloseWorld(ns))
	}
	return ns, nil
}

// CloseWorld takes the world and the uplink away.
func CloseWorld(ns *Namespace) error {
	up, err := netlink.LinkByName("up0")
	if err == nil {
		err = netlink.LinkDel(up)
	}
	return errors.Join(err, ns.Close())
}
