package netvs

// Reason is what became of a packet: the way it went, or why it was dropped (enum reason of bpf/types.h).
type Reason uint8

// What can become of a packet.
const (
	PassedOut Reason = iota
	PassedIn
	Answered
	DropDetached
	DropMalformed
	DropEtherType
	DropIPv6
	DropVLAN
	DropSourceMAC
	DropDestinationMAC
	DropARP
	DropARPIdle
	DropSourceIP
	DropOptions
	DropProtocol
	DropICMPType
	DropFragment
	DropGateway
	DropBlocked
	DropPolicy
	DropDestinationIP
	DropUnsolicited
	DropFailed
	reasons
)

var reasonNames = [reasons]string{
	"passed out", "passed in", "answered", "no sandbox", "malformed", "unknown ethertype", "ipv6", "vlan tag",
	"source mac", "destination mac", "arp", "idle arp", "source ip", "ip options", "unknown protocol", "icmp type",
	"tiny fragment", "unknown gateway service", "blocked range", "policy", "destination ip", "unsolicited", "rewrite failed",
}

func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Dropped says that the packet went nowhere.
func (r Reason) Dropped() bool { return r >= DropDetached }

// Marks on packets to a guest (bpf/types.h): the rule set puts markEstablished on replies to flows a guest opened.
const (
	markEstablished uint32 = 0x00ce0000
	markMask        uint32 = 0x00ff0000
)

// Bits of tapSandbox.Flags (enum sandbox_flags of bpf/types.h).
const (
	allowDefault = 1 << iota
	hasRules
	hasNames
	hasDNS
)
