package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Client reaches etcd. Every request has a deadline: without a leader etcd answers nothing.
type Client struct {
	Etcd    *clientv3.Client
	Prefix  string
	Timeout time.Duration
}

// Keep-alive of connections to etcd: a member that hangs is noticed within both.
const (
	dialTimeout      = 5 * time.Second
	keepAliveTime    = 5 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// Dial makes a client; it connects when it is used. endpoint, when set, is the embedded
// member's. Close it.
func Dial(c EtcdConfig, endpoint string, log *slog.Logger) (*Client, error) {
	tls, err := c.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	endpoints := c.Endpoints
	if endpoint != "" {
		endpoints = []string{endpoint}
	}
	// Not from the context of a caller: the client must outlive it to end leases.
	e, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: tls, Username: c.Username, Password: c.Password.Reveal(),
		DialTimeout: dialTimeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout, PermitWithoutStream: true,
		Logger: zap.New(zapToSlog{h: log.With("part", "etcd client").Handler()}),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client for %v: %w", endpoints, err)
	}
	return &Client{Etcd: e, Prefix: c.Prefix, Timeout: c.RequestTimeout}, nil
}

// Close ends the client.
func (c *Client) Close() error { return c.Etcd.Close() }

// Bound is ctx with the deadline of one request.
func (c *Client) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.Timeout)
}

// Get reads a key, linearizably; nil when it is absent.
func (c *Client) get(ctx context.Context, key string) (*kv, error) {
	ctx, cancel := c.Bound(ctx)
	defer cancel()
	r, err := c.Etcd.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("etcd: get %s: %w", key, err)
	}
	if len(r.Kvs) == 0 {
		return nil, nil
	}
	return r.Kvs[0], nil
}

// txn runs a transaction; key names it in errors.
func (c *Client) txn(ctx context.Context, key string, cmps []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := c.Bound(ctx)
	defer cancel()
	r, err := c.Etcd.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("etcd: write %s: %w", key, err)
	}
	return r, nil
}

// ErrBehind: etcd is another one than before, or was restored from a backup.
var ErrBehind = errors.New("etcd has lost revisions that it had")
