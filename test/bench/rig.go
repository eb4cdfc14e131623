package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// section is a part of a settings file.
type section = map[string]any

// Prefixes of one bucket: what the collector writes, and what the bare requests write.
const (
	bucket      = "bench"
	oursPrefix  = "ours/"
	floorPrefix = "bare/"
	authority   = "bench"
)

// readyTimeout bounds the start of a process.
const readyTimeout = 60 * time.Second

// rig is an embedded store and a collector over it, each a process of its own, with
// default settings but for addresses, credentials and pprof.
type rig struct {
	e                     *env
	dir                   string
	accessKey, secret     string
	storeAddr, storeAdmin string
	grpcAddr, httpAddr    string
	store, collector      *proc.Process
	settings              section // of the store, beside those that every one has
}

func newRig(e *env) (*rig, error) {
	r := &rig{e: e, accessKey: "bench-" + rand.Text()[:8], secret: rand.Text()}
	var errs []error
	var err error
	r.dir, err = os.MkdirTemp(e.dir, "rig-")
	errs = append(errs, err)
	for _, a := range []*string{&r.storeAddr, &r.storeAdmin, &r.grpcAddr, &r.httpAddr} {
		*a, err = proc.FreePort(0)
		errs = append(errs, err)
	}
	return r, errors.Join(errs...)
}

// close kills what runs and removes the data.
func (r *rig) close() {
	for _, p := range []*proc.Process{r.collector, r.store} {
		if p != nil {
			p.Kill()
		}
	}
	os.RemoveAll(r.dir)
}

func (r *rig) start(ctx context.Context, command, ready string, s section) (*proc.Process, error) {
	b, err := yaml.Marshal(section{command: s})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(r.dir, command+".yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, err
	}
	p, err := proc.Start(proc.Spec{Name: command, Bin: r.e.bin, Dir: r.dir, Args: []string{command, "--config", file}, ReadyURL: ready})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// startStore starts the embedded store, over the data that is there.
func (r *rig) startStore(ctx context.Context) (err error) {
	s := section{
		"listen": r.storeAddr, "admin_listen": r.storeAdmin, "dir": filepath.Join(r.dir, "objects"), "pprof": true,
		"buckets": []string{bucket},
		"users":   []section{{"name": "bench", "access_key_id": r.accessKey, "secret": r.secret}},
	}
	maps.Copy(s, r.settings)
	r.store, err = r.start(ctx, "objectstore", "http://"+r.storeAdmin+"/-/ready", s)
	return err
}

func (r *rig) collectorSettings(endpoint string) section {
	return section{
		"grpc": section{"listen": r.grpcAddr}, "http": section{"listen": r.httpAddr}, "pprof": true,
		"id": "bench-1", "authority_id": authority,
		"store": section{"endpoint": endpoint, "bucket": bucket, "prefix": oursPrefix, "path_style": true,
			"access_key_id": r.accessKey, "secret_access_key": r.secret},
	}
}

// startCollector starts a collector that reaches the store at endpoint; "" is directly.
func (r *rig) startCollector(ctx context.Context, endpoint string) (err error) {
	if endpoint == "" {
		endpoint = "http://" + r.storeAddr
	}
	r.collector, err = r.start(ctx, "ingest", "http://"+r.httpAddr+"/-/ready", r.collectorSettings(endpoint))
	return err
}

// startBoth starts the store and a collector over it.
func (r *rig) startBoth(ctx context.Context) error {
	if err := r.startStore(ctx); err != nil {
		return err
	}
	return r.startCollector(ctx, "")
}

// startCoordinator starts a coordinator with one etcd member, and returns where workers reach it.
func (r *rig) startCoordinator(ctx context.Context, settings section) (p *proc.Process, addr string, err error) {
	addrs := make([]string, 2)
	for i := range addrs {
		if addrs[i], err = proc.FreePort(0); err != nil {
			return nil, "", err
		}
	}
	s := section{
		"http": section{"listen": addrs[0]}, "grpc": section{"listen": addrs[1]},
		"etcd": section{"embedded": section{"data_dir": filepath.Join(r.dir, "etcd")}},
	}
	maps.Copy(s, settings)
	p, err = r.start(ctx, "coordinator", "http://"+addrs[0]+"/-/ready", s)
	return p, addrs[1], err
}

// client opens the bucket under a prefix.
func (r *rig) client(ctx context.Context, endpoint, prefix string) (*s3.Store, error) {
	if endpoint == "" {
		endpoint = "http://" + r.storeAddr
	}
	return s3.New(ctx, bucketAt(endpoint, bucket, prefix, r.accessKey, r.secret), s3.Options{})
}

func bucketAt(endpoint, bucket, prefix, accessKey, secret string) s3.Config {
	c := s3.DefaultConfig()
	c.Endpoint, c.Bucket, c.Prefix, c.PathStyle = endpoint, bucket, prefix, true
	c.AccessKeyID, c.SecretAccessKey = accessKey, config.Secret(secret)
	return c
}

// crash kills both processes at once and starts the store again over what is on its disk.
func (r *rig) crash(ctx context.Context) error {
	if r.collector != nil {
		r.collector.Kill()
		r.collector = nil
	}
	r.store.Kill()
	r.store = nil
	if err := r.startStore(ctx); err != nil {
		return fmt.Errorf("start the store after kill -9: %w", err)
	}
	return nil
}
