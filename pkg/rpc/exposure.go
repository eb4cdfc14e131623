package rpc

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/web"
)

// CheckExposure refuses settings that let everybody in from the network: addresses beyond
// loopback without credentials, or with tokens that travel in the clear. addresses are the
// host:port of each listen setting by its name; an empty one is not served. AllowInsecure
// lets it pass, but for mTLS without a CA, which lets nobody in, and for profiles (pprof),
// which show memory and cost CPU: off loopback they are for operators.
func CheckExposure(auth AuthConfig, tls ServerTLS, pprof bool, addresses map[string]string) error {
	if auth.Mode == AuthMTLS && tls.ClientCAFile == "" {
		return errors.New("auth: mode mtls needs tls.client_ca_file")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(addresses)) {
		a := addresses[name]
		switch {
		case a == "" || web.Loopback(a):
		case pprof && auth.Mode == AuthNone:
			errs = append(errs, fmt.Errorf("%s %q: pprof off loopback needs auth.mode token or mtls", name, a))
		case auth.AllowInsecure:
		case auth.Mode == AuthNone:
			errs = append(errs, fmt.Errorf("%s %q: auth.mode none is for loopback, unless auth.allow_insecure", name, a))
		case auth.Mode == AuthToken && !tls.Enabled():
			errs = append(errs, fmt.Errorf("%s %q: tokens need tls.cert_file off loopback, unless auth.allow_insecure", name, a))
		}
	}
	return errors.Join(errs...)
}
