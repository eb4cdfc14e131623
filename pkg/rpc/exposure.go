package rpc

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/run"
)

// CheckExposure refuses settings that let everybody in from the network: addresses beyond
// loopback without credentials, or with tokens that travel in the clear. addresses are the
// host:port of each listen setting by its name; an empty one is not served. AllowInsecure
// lets all of it pass, but for mTLS without a CA, which lets nobody in.
func CheckExposure(auth AuthConfig, tls ServerTLS, addresses map[string]string) error {
	if auth.Mode == AuthMTLS && tls.ClientCAFile == "" {
		return errors.New("auth: mode mtls needs tls.client_ca_file")
	}
	if auth.AllowInsecure {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(addresses)) {
		a := addresses[name]
		switch {
		case a == "" || run.Loopback(a):
		case auth.Mode == AuthNone:
			errs = append(errs, fmt.Errorf("%s %q: auth.mode none is for loopback, unless auth.allow_insecure", name, a))
		case auth.Mode == AuthToken && !tls.Enabled():
			errs = append(errs, fmt.Errorf("%s %q: tokens need tls.cert_file off loopback, unless auth.allow_insecure", name, a))
		}
	}
	return errors.Join(errs...)
}
