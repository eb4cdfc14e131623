package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// ClientConfig is how to reach a gRPC server.
type ClientConfig struct {
	TLS   tlsfile.Client `koanf:"tls"`
	Token config.Secret  `koanf:"token" help:"bearer token" reload:"file"`
	// TokenFile fills Token when settings are loaded, and is read again when it changes.
	TokenFile string `koanf:"token_file" help:"file that holds the bearer token, in place of token"`
	// TokenOverPlaintext sends the token without TLS.
	TokenOverPlaintext bool `koanf:"token_over_plaintext" help:"send the token even without TLS (loopback, tests)" needs:"token"`
}

// Check refuses a token without TLS, which gRPC would not send.
func (c ClientConfig) Check() error {
	if c.Token != "" && !c.TLS.Enabled && !c.TokenOverPlaintext {
		return errTokenInTheClear
	}
	return nil
}

var errTokenInTheClear = errors.New("client: a token needs tls.enabled (or token_over_plaintext)")

// maxReconnectDelay bounds the back-off between connection attempts.
const maxReconnectDelay = 5 * time.Second

// Dial makes a lazy connection to address (host:port).
func Dial(address string, c ClientConfig, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	configs, err := c.TLS.Configs()
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if configs != nil {
		creds = reloadingTLS{credentials.NewTLS(configs()), configs}
	}
	// gRPC's default waits up to two minutes, during which a server that is back is not noticed.
	bo := backoff.DefaultConfig
	bo.BaseDelay, bo.MaxDelay = 100*time.Millisecond, maxReconnectDelay
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithPropagators(propagation.TraceContext{}))),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: bo, MinConnectTimeout: 3 * time.Second}),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
	}
	if c.Token != "" {
		// Refused here with the names of the settings; the error of gRPC has none.
		if err := c.Check(); err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WithPerRPCCredentials(c.bearer()))
	}
	conn, err := grpc.NewClient(address, append(opts, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

// reloadingTLS gets its configuration for each connection, so that a replaced CA is used from the
// next connection on.
type reloadingTLS struct {
	credentials.TransportCredentials
	configs func() *tls.Config
}

func (f reloadingTLS) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(f.configs()).ClientHandshake(ctx, authority, c)
}

func (f reloadingTLS) Clone() credentials.TransportCredentials {
	return reloadingTLS{f.TransportCredentials.Clone(), f.configs}
}

// bearer sends the token of a setting, or the present content of its file.
type bearer struct {
	token     *tlsfile.Value[config.Secret]
	plaintext bool
}

func (c ClientConfig) bearer() bearer {
	b := bearer{token: tlsfile.NewValue(func() (*config.Secret, error) { return &c.Token, nil }), plaintext: c.TokenOverPlaintext}
	if c.TokenFile != "" {
		b.token = tlsfile.NewValue(func() (*config.Secret, error) {
			s, err := config.ReadSecret(c.TokenFile)
			return &s, err
		}, c.TokenFile)
	}
	return b
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.token.Get()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token.Reveal()}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.plaintext }
