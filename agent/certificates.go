package agent

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"time"
)

// certificate is one that this agent shows to others.
type certificate struct {
	file     string
	notAfter time.Time
}

// certificates reads when the client certificates of the collectors and inputs end. The
// files change under a running agent, so they are read each time; one that can't be read is left out.
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

// notAfter is the end of the first certificate of a PEM file, which is the one that is shown.
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
