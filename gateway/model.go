package gateway

import (
	"time"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/node"
)

// clientID is a constant that E2B once used to find a sandbox's host and SDKs still expect.
const clientID = "6532622b"

// The contract's schemas, in its field names.
type (
	sandboxBody struct {
		TemplateID         string  `json:"templateID"`
		SandboxID          string  `json:"sandboxID"`
		ClientID           string  `json:"clientID"`
		EnvdVersion        string  `json:"envdVersion"`
		Alias              string  `json:"alias,omitempty"`
		EnvdAccessToken    string  `json:"envdAccessToken,omitempty"`
		TrafficAccessToken *string `json:"trafficAccessToken"`
		Domain             *string `json:"domain"`
	}
	listedSandbox struct {
		TemplateID  string            `json:"templateID"`
		SandboxID   string            `json:"sandboxID"`
		ClientID    string            `json:"clientID"`
		StartedAt   time.Time         `json:"startedAt"`
		EndAt       time.Time         `json:"endAt"`
		CPUCount    int               `json:"cpuCount"`
		MemoryMB    int               `json:"memoryMB"`
		DiskSizeMB  int               `json:"diskSizeMB"`
		State       node.State        `json:"state"`
		EnvdVersion string            `json:"envdVersion"`
		Alias       string            `json:"alias,omitempty"`
		Metadata    map[string]string `json:"metadata,omitempty"`
	}
	sandboxDetail struct {
		listedSandbox
		EnvdAccessToken     string       `json:"envdAccessToken,omitempty"`
		Domain              *string      `json:"domain"`
		AllowInternetAccess *bool        `json:"allowInternetAccess"`
		Network             *networkBody `json:"network,omitempty"`
		Lifecycle           lifecycle    `json:"lifecycle"`
	}
	lifecycle struct {
		AutoResume bool   `json:"autoResume"`
		OnTimeout  string `json:"onTimeout"`
	}
	templateBody struct {
		TemplateID    string    `json:"templateID"`
		BuildID       string    `json:"buildID"`
		CPUCount      int       `json:"cpuCount"`
		MemoryMB      int       `json:"memoryMB"`
		DiskSizeMB    int       `json:"diskSizeMB"`
		Public        bool      `json:"public"`
		Aliases       []string  `json:"aliases"`
		Names         []string  `json:"names"`
		CreatedAt     time.Time `json:"createdAt"`
		UpdatedAt     time.Time `json:"updatedAt"`
		CreatedBy     *struct{} `json:"createdBy"`
		LastSpawnedAt *string   `json:"lastSpawnedAt"`
		SpawnCount    int       `json:"spawnCount"`
		BuildCount    int       `json:"buildCount"`
		EnvdVersion   string    `json:"envdVersion"`
		BuildStatus   string    `json:"buildStatus"`
	}
)

func (s *Server) sandboxBody(sb node.Sandbox) sandboxBody {
	return sandboxBody{
		TemplateID:      sb.TemplateID,
		SandboxID:       sb.ID,
		ClientID:        clientID,
		EnvdVersion:     agentVersion(sb.AgentVersion),
		Alias:           sb.Alias,
		EnvdAccessToken: sb.AccessToken,
		Domain:          s.domainOrNull(),
	}
}

func listed(sb node.Sandbox) listedSandbox {
	return listedSandbox{
		TemplateID:  sb.TemplateID,
		SandboxID:   sb.ID,
		ClientID:    clientID,
		StartedAt:   sb.StartedAt.UTC(),
		EndAt:       sb.EndAt.UTC(),
		CPUCount:    sb.CPUCount,
		MemoryMB:    sb.MemoryMB,
		DiskSizeMB:  sb.DiskSizeMB,
		State:       sb.State,
		EnvdVersion: agentVersion(sb.AgentVersion),
		Alias:       sb.Alias,
		Metadata:    sb.Metadata,
	}
}

func (s *Server) detail(sb node.Sandbox) sandboxDetail {
	return sandboxDetail{
		listedSandbox:       listed(sb),
		EnvdAccessToken:     sb.AccessToken,
		Domain:              s.domainOrNull(),
		AllowInternetAccess: sb.AllowInternet,
		Network:             network(sb.Network),
		Lifecycle:           lifecycle{OnTimeout: "kill"},
	}
}

func template(t node.Template) templateBody {
	names := []string{}
	if t.Alias != "" {
		names = append(names, t.Alias)
	}
	return templateBody{
		TemplateID:  t.ID,
		BuildID:     t.BuildID,
		CPUCount:    t.CPUCount,
		MemoryMB:    t.MemoryMB,
		DiskSizeMB:  t.DiskSizeMB,
		Public:      true,
		Aliases:     names,
		Names:       names,
		CreatedAt:   t.CreatedAt.UTC(),
		UpdatedAt:   t.CreatedAt.UTC(),
		BuildCount:  1,
		EnvdVersion: agentVersion(t.AgentVersion),
		BuildStatus: "ready",
	}
}

// agentVersion falls back to the version whose contract our agent keeps: without one SDKs switch features off.
func agentVersion(v string) string {
	if v == "" {
		return wire.AgentVersion
	}
	return v
}

// domainOrNull is null where no domain is configured; SDKs then use the one of their own settings.
func (s *Server) domainOrNull() *string {
	if s.domain == "" {
		return nil
	}
	return &s.domain
}
