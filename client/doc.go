// Package client sends metrics of your own program to Lightmetrics, and asks for them again.
//
// A Writer keeps samples on disk until a collector has accepted them. It sends each batch, with
// the same bytes, until it has a final answer, and each batch is accepted exactly once: it is the
// queue and the sender of the agent as a library. A Querier evaluates PromQL; each answer says how
// complete it is.
//
// Beside this package, pkg/frame (the bytes of a batch), pkg/series (labels, types and
// histograms), pkg/identity (names of batches) and the generated protobuf packages are public.
package client

import (
	"errors"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// Credentials say how a service is reached. The zero value is plaintext and no token, for
// services on this machine.
type Credentials struct {
	// TLS turns it on; nil is plaintext.
	TLS *TLS
	// Token is a bearer token, TokenFile a file that holds one and is read again when it
	// changes; one of them. A token without TLS is an error, unless TokenOverPlaintext allows it.
	Token, TokenFile   string
	TokenOverPlaintext bool
}

// TLS of a connection. The zero value verifies the server against the system's authorities.
type TLS struct {
	// CAFile has the PEM certificates that sign the server's; empty uses the system's.
	CAFile string
	// CertFile and KeyFile are the client certificate, where the server wants one. They are
	// read again when they change.
	CertFile, KeyFile string
	// ServerName is verified in place of the address.
	ServerName string
}

// config is what the connection's own package takes.
func (c Credentials) config() (rpc.ClientConfig, error) {
	out := rpc.ClientConfig{Token: config.Secret(c.Token), TokenFile: c.TokenFile, TokenOverPlaintext: c.TokenOverPlaintext}
	if c.TLS != nil {
		out.TLS = tlsfile.Client{Enabled: true, CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, ServerName: c.TLS.ServerName}
	}
	if c.TokenFile != "" {
		if c.Token != "" {
			return out, errors.New("client: Token and TokenFile: want one of them")
		}
		token, err := config.ReadSecret(c.TokenFile)
		if err != nil {
			return out, err
		}
		out.Token = token
	}
	return out, out.Check()
}
