package events

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// Config says where the events of the bucket come from.
type Config struct {
	Webhook bool  `koanf:"webhook" help:"serve POST /v1/events, a webhook for the events of the object store, for callers with the role worker"`
	Queue   Queue `koanf:"queue"`
}

// Queue is an SQS queue that the events of the bucket are sent to.
type Queue struct {
	URL    string `koanf:"url" help:"URL of an SQS queue with the bucket's events; empty takes none"`
	Region string `koanf:"region" help:"region that requests are signed for; empty is the store's" needs:"url"`
	// AccessKeyID and SecretAccessKey are for a queue that is elsewhere than the bucket.
	AccessKeyID     string        `koanf:"access_key_id" help:"access key for the queue; empty takes the store's credentials" needs:"url"`
	SecretAccessKey config.Secret `koanf:"secret_access_key" help:"secret of the access key" needs:"url"`
	// SecretAccessKeyFile fills SecretAccessKey when settings are loaded.
	SecretAccessKeyFile string        `koanf:"secret_access_key_file" help:"file that holds the secret of the access key, in place of secret_access_key" needs:"url"`
	CAFile              string        `koanf:"ca_file" help:"PEM file of the authorities that the queue's certificate is checked against; empty takes the system's" check:"file" needs:"url"`
	Receivers           int           `koanf:"receivers" help:"requests for messages at once" needs:"url"`
	Wait                time.Duration `koanf:"wait" help:"how long a request waits for messages, whole seconds up to 20s" needs:"url"`
	Visibility          time.Duration `koanf:"visibility" help:"how long a message that was received and not deleted stays hidden from other receivers, in whole seconds" needs:"url"`
	Unknown             string        `koanf:"unknown" help:"what is done with messages that are no events of an object store: delete, or leave, for the queue's redrive policy to move them" needs:"url"`
}

// Values of Queue.Unknown.
const (
	UnknownDelete = "delete"
	UnknownLeave  = "leave"
)

// DefaultConfig takes no events.
func DefaultConfig() Config {
	return Config{Queue: Queue{Receivers: 2, Wait: 20 * time.Second, Visibility: 30 * time.Second, Unknown: UnknownDelete}}
}

// maxVisibility is SQS's.
const maxVisibility = 12 * time.Hour

// Validate checks ranges.
func (c Config) Validate() error {
	q := c.Queue
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("events.queue."+format, args...)) }
	if q.URL != "" {
		u, err := url.Parse(q.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || len(u.Path) < 2 || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			bad("url: want http(s)://host/…/name, without user, query or fragment")
		}
		if q.CAFile != "" && err == nil && u.Scheme == "http" {
			bad("ca_file has no effect: the queue's URL is without TLS")
		}
	}
	if (q.AccessKeyID == "") != (q.SecretAccessKey == "") {
		bad("access_key_id and secret_access_key go together")
	}
	if q.Receivers < 1 || q.Receivers > 32 {
		bad("receivers: must be 1 to 32")
	}
	if q.Wait < time.Second || q.Wait > 20*time.Second || q.Wait%time.Second != 0 {
		bad("wait: must be whole seconds, 1s to 20s")
	}
	if q.Visibility < time.Second || q.Visibility > maxVisibility || q.Visibility%time.Second != 0 {
		bad("visibility: must be whole seconds, up to %s", maxVisibility)
	}
	if q.Unknown != UnknownDelete && q.Unknown != UnknownLeave {
		bad("unknown: must be %s or %s", UnknownDelete, UnknownLeave)
	}
	return errors.Join(errs...)
}
