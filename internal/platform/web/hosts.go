package web

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// Loopback reports whether an address (host:port) can be reached only from this machine. An address
// that cannot be parsed counts as reachable from anywhere.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// CheckHosts answers 421 to requests for a host that is not this service's. It protects against DNS
// rebinding: an attacker's web page can let its own name resolve to 127.0.0.1 and then read what is
// served there, but the Host header still has the attacker's name. address is where the service
// listens. On loopback the names of loopback and hosts are accepted; elsewhere every name, unless
// hosts has some. IP addresses are always accepted, since they cannot be rebound.
func CheckHosts(address string, hosts []string, next http.Handler) http.Handler {
	// Off loopback the names under which clients come are not known here, unless hosts has them.
	if !Loopback(address) && len(hosts) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := hostName(r.Host); !ownHost(name, hosts) {
			WriteError(w, http.StatusMisdirectedRequest, "wrong_host",
				"requests for host "+name+" are not taken here; http.hosts names those that are, beside loopback's", nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostName is the Host header without its port, in lower case.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

func ownHost(name string, hosts []string) bool {
	switch {
	case name == "": // HTTP/1.0: no browser
		return true
	case name == "localhost", strings.HasSuffix(name, ".localhost"): // never resolved elsewhere (RFC 6761)
		return true
	case net.ParseIP(name) != nil:
		return true
	}
	return slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(strings.TrimSuffix(h, "."), name) })
}
