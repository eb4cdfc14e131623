package service

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Base are the settings of every service. A service's Config embeds it, so that they stand at
// the top of the service's section of the settings file.
type Base struct {
	HTTP web.HTTPConfig `koanf:"http"`
	GRPC web.GRPCConfig `koanf:"grpc"`
	// Admin moves /metrics, /-/healthy, /-/ready, /config and /debug/pprof/ off the HTTP port.
	Admin AdminConfig    `koanf:"admin"`
	TLS   rpc.ServerTLS  `koanf:"tls"`
	Auth  rpc.AuthConfig `koanf:"auth"`
	Pprof bool           `koanf:"pprof" help:"serve /debug/pprof/"`

	ID           string        `koanf:"id" help:"name of this process in what it writes and logs; empty is one of its own"`
	DrainTimeout time.Duration `koanf:"drain_timeout" help:"longest time that a shutdown waits for what was begun"`
}

// AdminConfig is where the admin paths are.
type AdminConfig struct {
	Listen string `koanf:"listen" help:"host:port of the admin paths; with TLS where there is any, client certificates asked for but not required; empty serves them on the HTTP port" check:"listen"`
}

// DefaultBase listens on these addresses and requires no credentials, which is refused
// off loopback. An empty grpc serves no gRPC.
func DefaultBase(http, grpc string) Base {
	return Base{
		HTTP: web.DefaultHTTP(http), GRPC: web.DefaultGRPC(grpc),
		Auth: rpc.AuthConfig{Mode: rpc.AuthNone}, DrainTimeout: 5 * time.Second,
	}
}

// base is how a settings struct that embeds Base gives it.
func (b Base) base() Base { return b }

// Validate refuses what can't work, and what would let everybody in from the network.
func (b Base) Validate() error {
	var errs []error
	if b.HTTP.Listen == "" {
		errs = append(errs, errors.New("http.listen: is needed"))
	}
	if b.DrainTimeout <= 0 {
		errs = append(errs, errors.New("drain_timeout: must be greater than 0"))
	}
	return errors.Join(append(errs, b.HTTP.Validate(), b.GRPC.Validate(), b.TLS.Validate(), b.Auth.Validate(), b.checkExposure(), b.checkListeners())...)
}

// listeners are the addresses by their settings; one that is empty is not served.
func (b Base) listeners() map[string]string {
	return map[string]string{"http.listen": b.HTTP.Listen, "grpc.listen": b.GRPC.Listen, "admin.listen": b.Admin.Listen}
}

// checkListeners refuses two listeners of which the second could never open its address.
func (b Base) checkListeners() error {
	addresses := b.listeners()
	names := slices.Sorted(maps.Keys(addresses))
	var errs []error
	for i, name := range names {
		// Each pair once, in the order of the names, so that equal settings give equal messages.
		for _, other := range names[:i] {
			if web.Collide(addresses[name], addresses[other]) {
				errs = append(errs, fmt.Errorf("%s %q: %s is %q, and one address takes one listener", name, addresses[name], other, addresses[other]))
			}
		}
	}
	return errors.Join(errs...)
}

// checkExposure refuses settings that let everybody in from the network: addresses beyond
// loopback without credentials, or with tokens that travel in the clear. An address that is
// empty is not served. auth.allow_insecure lets it pass, but for mTLS without a CA, which
// lets nobody in, and for profiles (pprof), which show memory and cost CPU: off loopback they
// are for operators.
func (b Base) checkExposure() error {
	if b.Auth.Mode == rpc.AuthMTLS && b.TLS.ClientCAFile == "" {
		return errors.New("auth: mode mtls needs tls.client_ca_file")
	}
	addresses := b.listeners()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(addresses)) {
		a := addresses[name]
		switch {
		case a == "" || web.Loopback(a):
		// Before allow_insecure, which must not open profiles to everybody.
		case b.Pprof && b.Auth.Mode == rpc.AuthNone:
			errs = append(errs, fmt.Errorf("%s %q: pprof off loopback needs auth.mode token or mtls", name, a))
		case b.Auth.AllowInsecure:
		case b.Auth.Mode == rpc.AuthNone:
			errs = append(errs, fmt.Errorf("%s %q: auth.mode none is for loopback, unless auth.allow_insecure", name, a))
		case b.Auth.Mode == rpc.AuthToken && !b.TLS.Enabled():
			errs = append(errs, fmt.Errorf("%s %q: tokens need tls.cert_file off loopback, unless auth.allow_insecure", name, a))
		}
	}
	return errors.Join(errs...)
}
