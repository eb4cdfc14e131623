package rpc

import (
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lightmetrics.dev/lightmetrics/pkg/web"
)

// maxJSONBody bounds the body of a JSON request.
const maxJSONBody = 1 << 20

// GatewayRoutes are the HTTP routes of a service's methods, by their google.api.http
// annotations, each for the roles of its method. gw serves them; the gateway's own
// handlers don't ask for roles.
func GatewayRoutes(service protoreflect.ServiceDescriptor, access Access, gw http.Handler) []web.Route {
	var rs []web.Route
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
		verb, path := verbAndPath(rule)
		if path == "" {
			continue
		}
		r := web.Route{
			Pattern: verb + " " + path, Handler: gw, MaxBody: maxJSONBody,
			About: fmt.Sprintf("%s.%s as JSON", service.Name(), m.Name()),
			Roles: access[fmt.Sprintf("/%s/%s", service.FullName(), m.Name())],
		}
		// http.ServeMux has no verbs behind a wildcard; the gateway compares it.
		if at := strings.LastIndex(path, "}:"); at >= 0 {
			r.Pattern, r.About = verb+" "+path[:at+1], r.About+", with "+path[at+1:]+" behind the last segment"
		}
		if verb == http.MethodGet {
			r.MaxBody = 0
		}
		rs = append(rs, r)
	}
	return rs
}

func verbAndPath(r *annotations.HttpRule) (verb, path string) {
	switch p := r.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, p.Get
	case *annotations.HttpRule_Post:
		return http.MethodPost, p.Post
	case *annotations.HttpRule_Put:
		return http.MethodPut, p.Put
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, p.Patch
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, p.Delete
	}
	return "", ""
}
