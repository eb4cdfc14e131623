package agent

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"time"
)

// certificate is a client certificate that this agent presents.
type certificate struct {
	file     string
	notAfter time.Time
}

// certificates reads when the client certificates of the sender and the inputs expire. They may be
// renewed while the agent runs, so the files are read each time; an unreadable one is left out.
func (a *Agent) certificates() []certificate {
	files := append(a.sources.certFiles(), a.cfg.Send.Client.TLS.CertFile)
	slices.Sort(files)
	var out []certificate
	for _, f := range slices.Compact(files) {
		if f == "" {
			continue
		}
		if at, err := notAfter(f); err == nil {
			out = append(out, certificate{f, at})
		}
	}
	return out
}

// notAfter reads when the first certificate of a PEM file expires: the one that is presented.
func notAfter(file string) (time.Time, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, err
	}
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			return time.Time{}, fmt.Errorf("%s has no PEM certificate", file)
		}
		if block.Type == "CERTIFICATE" {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return time.Time{}, fmt.Errorf("%s: %w", file, err)
			}
			return c.NotAfter, nil
		}
		b = rest
	}
}
