package gateway

import (
	"errors"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

func listTemplates(s *Server, r *request) error {
	list := []templateBody{}
	for _, t := range s.node.Templates() {
		list = append(list, template(t))
	}
	writeJSON(r.RequestCtx, fasthttp.StatusOK, list)
	return nil
}

func templateAlias(s *Server, r *request) error {
	t, err := s.node.Template(r.params[0])
	if errors.Is(err, node.ErrTemplateNotFound) {
		return errorf(fasthttp.StatusNotFound, "template %q was not found", clip(r.params[0], 100))
	}
	if err != nil {
		return err
	}
	writeJSON(r.RequestCtx, fasthttp.StatusOK, struct {
		TemplateID string `json:"templateID"`
		Public     bool   `json:"public"`
	}{t.ID, true})
	return nil
}
