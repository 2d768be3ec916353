package gateway

import "github.com/valyala/fasthttp"

// apiRoutes is the control plane. Fixed paths stand before those with a variable in the same place.
func apiRoutes() []route {
	health := newRoute("GET", "/health", func(_ *Server, r *request) error {
		r.SetStatusCode(fasthttp.StatusNoContent)
		return nil
	})
	health.public = true
	return []route{
		health,
		newRoute("POST", "/sandboxes", createV1),
		newRoute("POST", "/v2/sandboxes", createV2),
		newRoute("GET", "/sandboxes", listV1),
		newRoute("GET", "/v2/sandboxes", listV2),
		newRoute("GET", "/sandboxes/metrics", manyMetrics),
		newRoute("GET", "/sandboxes/:id", getSandbox),
		newRoute("DELETE", "/sandboxes/:id", killSandbox),
		newRoute("POST", "/sandboxes/:id/timeout", setTimeout),
		newRoute("POST", "/sandboxes/:id/refreshes", refresh),
		newRoute("POST", "/sandboxes/:id/connect", connectV1),
		newRoute("POST", "/v2/sandboxes/:id/connect", connectV2),
		newRoute("GET", "/sandboxes/:id/metrics", sandboxMetrics),
		newRoute("PUT", "/sandboxes/:id/network", setNetwork),
		newRoute("GET", "/templates", listTemplates),
		newRoute("GET", "/v2/templates", listTemplates),
		newRoute("GET", "/templates/aliases/:alias", templateAlias),

		newRoute("POST", "/sandboxes/:id/pause", notOffered("pausing")),
		newRoute("POST", "/sandboxes/:id/resume", notOffered("resuming")),
		newRoute("POST", "/sandboxes/:id/fork", notOffered("forking")),
		newRoute("POST", "/sandboxes/:id/snapshots", notOffered("snapshots")),
		newRoute("GET", "/snapshots", notOffered("snapshots")),
		newRoute("GET", "/sandboxes/:id/logs", notOffered("sandbox logs")),
		newRoute("GET", "/v2/sandboxes/:id/logs", notOffered("sandbox logs")),
		newRoute("POST", "/templates", notOffered("building templates through the API")),
		newRoute("POST", "/v2/templates", notOffered("building templates through the API")),
		newRoute("POST", "/v3/templates", notOffered("building templates through the API")),
		newRoute("POST", "/templates/tags", notOffered("template tags")),
		newRoute("DELETE", "/templates/tags", notOffered("template tags")),
		newRoute("DELETE", "/templates/:id", notOffered("deleting templates through the API")),
		newRoute("GET", "/volumes", notOffered("volumes")),
		newRoute("POST", "/volumes", notOffered("volumes")),
		newRoute("GET", "/secrets", notOffered("secrets")),
		newRoute("POST", "/secrets", notOffered("secrets")),
	}
}

// notOffered is part of the E2B API that this server does not have.
func notOffered(what string) handler {
	return func(*Server, *request) error {
		return errorf(fasthttp.StatusNotImplemented, "%s: not offered by this server", what)
	}
}
