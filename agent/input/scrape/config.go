package scrape

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/config"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
)

// Target is one Prometheus endpoint.
type Target struct {
	Job string `koanf:"job" help:"label job"`
	URL string `koanf:"url" help:"where the metrics are, with the path"`
	// Instance label; host:port of URL when empty.
	Instance string            `koanf:"instance" help:"label instance; host:port of the URL when empty"`
	Interval time.Duration     `koanf:"interval" help:"time between scrapes; the agent's interval when 0"`
	Timeout  time.Duration     `koanf:"timeout" help:"time for one scrape; at most the interval, which it is when 0"`
	Labels   map[string]string `koanf:"labels" help:"further labels"`
	// HonorLabels keeps the target's own labels where they clash with ours; else they become exported_<name>.
	HonorLabels bool `koanf:"honor_labels" help:"keep the target's labels where they clash with ours"`
	// IgnoreTimestamps stamps every sample with the scrape's time.
	IgnoreTimestamps bool `koanf:"ignore_timestamps" help:"do not use the target's timestamps"`
	SampleLimit      int  `koanf:"sample_limit" help:"a scrape with more samples fails; 0 takes the default of 50,000"`
	// BodyLimit after decompression.
	BodyLimit config.Bytes `koanf:"body_limit" help:"a longer body fails; 0 takes the default of 16MiB"`

	BearerToken config.Secret `koanf:"bearer_token" help:"bearer token"`
	Username    string        `koanf:"username" help:"user of basic authentication"`
	Password    config.Secret `koanf:"password" help:"password of basic authentication"`
	TLS         rpc.ClientTLS `koanf:"tls"`
}

// Defaults of a target.
const (
	defaultSampleLimit = 50_000
	defaultBodyLimit   = 16 << 20
)

// WithDefaults fills what is 0 or empty.
func (t Target) WithDefaults(interval time.Duration) Target {
	if t.Interval == 0 {
		t.Interval = interval
	}
	if t.Timeout == 0 {
		t.Timeout = t.Interval
	}
	if t.SampleLimit == 0 {
		t.SampleLimit = defaultSampleLimit
	}
	if t.BodyLimit == 0 {
		t.BodyLimit = defaultBodyLimit
	}
	if u, err := url.Parse(t.URL); err == nil && t.Instance == "" {
		t.Instance = u.Host
	}
	return t
}

// Validate checks a target that has its defaults.
func (t Target) Validate() error {
	u, err := url.Parse(t.URL)
	switch {
	case t.Job == "":
		return errors.New("job is empty")
	case err != nil:
		return fmt.Errorf("url: %w", err)
	case (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return fmt.Errorf("url %q: want http://host:port/path or https", t.URL)
	case t.Interval <= 0 || t.Timeout <= 0 || t.Timeout > t.Interval:
		return fmt.Errorf("interval %s and timeout %s: want 0 < timeout <= interval", t.Interval, t.Timeout)
	case t.SampleLimit < 0 || t.BodyLimit < 0:
		return errors.New("sample_limit and body_limit: want 0 or more")
	case t.BearerToken != "" && t.Username != "":
		return errors.New("bearer_token and username: want one of them")
	}
	for name := range t.Labels {
		if name == "" || name == "__name__" {
			return fmt.Errorf("labels: name %q is not allowed", name)
		}
	}
	return nil
}
