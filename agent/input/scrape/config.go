package scrape

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

// Target is one Prometheus endpoint.
type Target struct {
	Job string     `koanf:"job" help:"label job"`
	URL config.URL `koanf:"url" help:"where the metrics are, with the path"`
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

	// FollowRedirects as in Prometheus; but credentials only ever go to the URL's own scheme, host and port.
	FollowRedirects *bool `koanf:"follow_redirects" help:"follow redirects (default true); with credentials only within the URL's scheme, host and port"`

	BearerToken config.Secret `koanf:"bearer_token" help:"bearer token"`
	// BearerTokenFile fills BearerToken when settings are loaded, PasswordFile Password.
	BearerTokenFile string         `koanf:"bearer_token_file" help:"file that holds the bearer token, in place of bearer_token"`
	Username        string         `koanf:"username" help:"user of basic authentication"`
	Password        config.Secret  `koanf:"password" help:"password of basic authentication"`
	PasswordFile    string         `koanf:"password_file" help:"file that holds the password, in place of password"`
	TLS             tlsfile.Client `koanf:"tls"`
}

// Config are all targets.
type Config []Target

// Validate implements input.Settings.
func (c Config) Validate(interval time.Duration) error {
	var errs []error
	seen := map[[2]string]bool{}
	for i, t := range c {
		t = t.WithDefaults(interval)
		if err := t.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("scrape[%d]: %w", i, err))
		}
		name := [2]string{t.Job, t.Instance}
		if seen[name] {
			errs = append(errs, fmt.Errorf("scrape[%d]: job %q and instance %q are taken", i, t.Job, t.Instance))
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}

// Specs implements input.Settings.
func (c Config) Specs(interval time.Duration) []input.Spec {
	specs := make([]input.Spec, 0, len(c))
	for _, t := range c {
		t = t.WithDefaults(interval)
		spec := input.Spec{Kind: "scrape", Name: t.Job + " " + t.Instance, Settings: t, New: func(e input.Env) (input.Source, error) { return New(t, e) }}
		if t.TLS.CertFile != "" {
			spec.CertFiles = []string{t.TLS.CertFile}
		}
		specs = append(specs, spec)
	}
	return specs
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
	if t.FollowRedirects == nil {
		follow := true
		t.FollowRedirects = &follow
	}
	if u, err := url.Parse(t.URL.Reveal()); err == nil && t.Instance == "" {
		t.Instance = u.Host
	}
	return t
}

// Validate checks a target that has its defaults. A setting that would have no effect is an
// error: whoever wrote it believes that it is in force.
func (t Target) Validate() error {
	u, err := url.Parse(t.URL.Reveal())
	switch {
	case t.Job == "":
		return errors.New("job is empty")
	case err != nil:
		// The parser's error quotes what may be a password with a stray character in it.
		return errors.New("url: can't be parsed; percent-encode what is special in a password, or use username and password")
	case (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "":
		return fmt.Errorf("url %q: want http://host:port/path or https", t.URL)
	case t.Interval <= 0 || t.Timeout <= 0 || t.Timeout > t.Interval:
		return fmt.Errorf("interval %s and timeout %s: want 0 < timeout <= interval", t.Interval, t.Timeout)
	case t.SampleLimit < 0 || t.BodyLimit < 0:
		return errors.New("sample_limit and body_limit: want 0 or more")
	}
	if err := errors.Join(t.checkCredentials(u), t.checkTLS(u)); err != nil {
		return err
	}
	for name := range t.Labels {
		switch name {
		case "", "__name__":
			return fmt.Errorf("labels: name %q is not allowed", name)
		case "job", "instance":
			return fmt.Errorf("labels: %s has no effect here, because %s is a setting of its own", name, name)
		}
	}
	return nil
}

func (t Target) checkCredentials(u *url.URL) error {
	switch {
	case t.BearerToken != "" && t.Username != "":
		return errors.New("bearer_token and username: want one of them")
	case u.User != nil && (t.BearerToken != "" || t.Username != ""):
		return errors.New("url has a user, and bearer_token or username is set: want one of them")
	case t.Password != "" && t.Username == "":
		return errors.New("password has no effect without username")
	}
	return nil
}

func (t Target) checkTLS(u *url.URL) error {
	c := t.TLS
	if c.Enabled && u.Scheme == "http" {
		return errors.New("tls.enabled has no effect on an http url: write https")
	}
	for name, text := range map[string]string{"ca_file": c.CAFile, "cert_file": c.CertFile, "key_file": c.KeyFile, "server_name": c.ServerName} {
		if text != "" && !c.Enabled {
			return fmt.Errorf("tls.%s has no effect without tls.enabled", name)
		}
	}
	_, err := c.Config()
	return err
}
