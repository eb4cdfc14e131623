package main

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// parseAddress reads [scheme://]host:port, the one form of every address: grpc and grpcs,
// or http and https, of which those with an s use TLS. An agent speaks HTTP alone. plain
// is true where a scheme without TLS is written.
func parseAddress(s string, agent bool) (hostport string, scheme string, err error) {
	// url.Parse is of no use here: it takes the host of "localhost:4761" for a scheme.
	scheme, hostport, ok := strings.Cut(s, "://")
	if !ok {
		scheme, hostport = "", s
	}
	hostport = strings.TrimSuffix(hostport, "/")
	switch {
	case scheme == "", scheme == "http", scheme == "https":
	case !agent && (scheme == "grpc" || scheme == "grpcs"):
	default:
		err = fmt.Errorf("scheme %q is not known here", scheme)
	}
	if err == nil {
		err = config.CheckAddress(hostport)
	}
	if err != nil {
		return "", "", &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("address %q: want [grpc|grpcs|http|https://]host:port: %w", s, err)}
	}
	return hostport, scheme, nil
}

// resolve gives the address and the client of a service: flags win over variables
// (LMCTL_QUERY_ADDR, LMCTL_TOKEN, …), those over the context, that over the default.
func (s *service) resolve() (string, rpc.ClientConfig, error) {
	d, c := deployment{}, s.client
	// Without flags the caller has fixed address and credentials itself: neither the environment nor a
	// context may redirect it.
	if s.flagset != nil {
		var err error
		if d, err = currentDeployment(); err != nil {
			return "", c, err
		}
		c = withEnvironment(c, d)
	}
	addr := s.addr
	if s.flagset != nil && !s.flagset.Changed("addr") {
		of := d.Query
		switch s.name {
		case "coordinator":
			of = d.Coordinator
		case "reconciler":
			of = d.Reconciler
		}
		addr = cmp.Or(os.Getenv("LMCTL_"+strings.ToUpper(s.name)+"_ADDR"), of, s.addr)
	}
	hostport, scheme, err := parseAddress(addr, false)
	if err != nil {
		return "", c, err
	}
	secure := scheme == "grpcs" || scheme == "https"
	t := c.TLS
	switch {
	// A contradiction is refused and not decided: either choice could send a token where its owner did not
	// mean it to go.
	case scheme != "" && !secure && t.Enabled:
		err = fmt.Errorf("address %q is without TLS, and client.tls.enabled is set", addr)
	case !secure && !t.Enabled && (t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" || t.ServerName != ""):
		err = fmt.Errorf("address %q: certificates have no effect without TLS: write grpcs://%s", addr, hostport)
	}
	if err != nil {
		return "", c, &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	// An address without a scheme leaves the choice to client.tls.enabled.
	c.TLS.Enabled = t.Enabled || secure
	// The token is read here and not by config.Load, since the file may come from a variable or a context
	// that only this function knows.
	if c.TokenFile != "" && c.Token == "" {
		if c.Token, err = config.ReadSecret(c.TokenFile); err != nil {
			return "", c, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("token: %w", err)}
		}
	}
	// What goes to this machine itself crosses no network.
	c.TokenOverPlaintext = c.TokenOverPlaintext || c.Token != "" && !c.TLS.Enabled && isLoopback(hostport)
	if err := c.Check(); err != nil {
		return "", c, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("address %q: %w", addr, err)}
	}
	return hostport, c, nil
}

// isLoopback reports whether host:port is of this machine: a loopback address, or the name
// that RFC 6761 reserves for it.
func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// withEnvironment fills what flags left open.
func withEnvironment(c rpc.ClientConfig, d deployment) rpc.ClientConfig {
	// Token and file are filled together: a token by flag must not be replaced by the file of a context,
	// nor the other way round.
	if c.Token == "" && c.TokenFile == "" {
		c.Token = config.Secret(os.Getenv("LMCTL_TOKEN"))
		if c.Token == "" {
			c.TokenFile = cmp.Or(os.Getenv("LMCTL_TOKEN_FILE"), d.TokenFile)
		}
	}
	c.TLS.CAFile = cmp.Or(c.TLS.CAFile, os.Getenv("LMCTL_CA_FILE"), d.CAFile)
	c.TLS.CertFile = cmp.Or(c.TLS.CertFile, os.Getenv("LMCTL_CERT_FILE"), d.CertFile)
	c.TLS.KeyFile = cmp.Or(c.TLS.KeyFile, os.Getenv("LMCTL_KEY_FILE"), d.KeyFile)
	c.TLS.ServerName = cmp.Or(c.TLS.ServerName, os.Getenv("LMCTL_SERVER_NAME"), d.ServerName)
	return c
}
