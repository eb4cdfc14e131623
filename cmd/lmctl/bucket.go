package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storage"
)

const bucketHelp = `URL names the acceptance authority's bucket:

  s3://BUCKET[/PREFIX/]                                  AWS S3, AWS's credential chain
  s3://BUCKET[/PREFIX/]?endpoint=http://127.0.0.1:4790   another S3 server
  http://127.0.0.1:4790/BUCKET[/PREFIX/]                 the same, shorter

Options: endpoint, region, path_style (default true with an endpoint), ca_file. Credentials come from the
environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or AWS's other usual places, never from the URL.`

// bucketConfig reads a bucket URL.
func bucketConfig(raw string) (s3.Config, error) {
	cfg := s3.DefaultConfig()
	u, err := url.Parse(raw)
	if err != nil {
		return cfg, err
	}
	path := strings.TrimPrefix(u.Path, "/")
	switch u.Scheme {
	case "s3":
		cfg.Bucket, cfg.Prefix = u.Host, path
	case "http", "https":
		cfg.Endpoint = u.Scheme + "://" + u.Host
		cfg.Bucket, cfg.Prefix, _ = strings.Cut(path, "/")
	default:
		return cfg, fmt.Errorf("bucket URL %q: want s3://, http:// or https://", raw)
	}
	if u.User != nil {
		return cfg, errors.New("bucket URL: credentials belong into the environment")
	}
	for key, values := range u.Query() {
		// Of an option that is given twice the last one counts, as with flags.
		v := values[len(values)-1]
		switch key {
		case "endpoint":
			cfg.Endpoint = v
		case "region":
			cfg.Region = v
		case "ca_file":
			cfg.CAFile = v
		case "path_style":
		default:
			return cfg, fmt.Errorf("bucket URL: unknown option %q", key)
		}
	}
	// Other S3 servers seldom have a DNS name for each bucket, so path style is the default with an
	// endpoint. It is read after the loop, since the options come in no order.
	cfg.PathStyle = cfg.Endpoint != "" && u.Query().Get("path_style") != "false"
	// A prefix without its slash would also select the keys of prefixes that merely begin with it.
	if cfg.Prefix != "" && !strings.HasSuffix(cfg.Prefix, "/") {
		cfg.Prefix += "/"
	}
	return cfg, cfg.Validate()
}

// openBucket opens a bucket URL.
func openBucket(ctx context.Context, raw string) (objstore.Store, error) {
	cfg, err := bucketConfig(raw)
	if err != nil {
		return nil, &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	return storage.Open(ctx, cfg, storage.Options{})
}

// reached gives store failures the exit code for "unreachable".
func reached(err error) error {
	// Denied and no bucket count as not reached: the credentials or the URL are wrong, and nothing was
	// learned about the data.
	for _, e := range []error{objstore.ErrUnavailable, objstore.ErrDenied, objstore.ErrNoBucket, objstore.ErrUnknown} {
		if errors.Is(err, e) {
			return &cli.ExitError{Code: cli.ExitUnreachable, Err: err}
		}
	}
	return err
}
