package objectstore

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/notify"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3api"
)

// User is somebody who may send requests. There are only the configured users.
type User struct {
	Name        string        `koanf:"name"`
	AccessKeyID string        `koanf:"access_key_id"`
	Secret      config.Secret `koanf:"secret"`
	// SecretFile fills Secret when settings are loaded.
	SecretFile string `koanf:"secret_file"`
	// Policy is a JSON policy without principals; empty: everything that no bucket policy denies.
	Policy string `koanf:"policy"`
}

// Webhook is a URL to which the events of objects are posted.
type Webhook struct {
	// Name identifies the stored position in the log; a new name starts at the end of the log.
	// Default: the URL.
	Name string     `koanf:"name"`
	URL  config.URL `koanf:"url"` // may have a token; it is shown without
	// Bucket and Prefix select keys; empty is all.
	Bucket string `koanf:"bucket"`
	Prefix string `koanf:"prefix"`
	// Events, such as s3:ObjectCreated:* or s3:ObjectRemoved:Delete; empty is s3:ObjectCreated:*.
	Events []string `koanf:"events"`
	// Authorization is sent as the header of this name; empty sends none.
	Authorization config.Secret `koanf:"authorization"`
	// AuthorizationFile fills Authorization when settings are loaded.
	AuthorizationFile string `koanf:"authorization_file"`
	// TLS of an https URL: who may answer, and the certificate of this store.
	TLS notify.TLS `koanf:"tls"`
}

// Config of the object store.
type Config struct {
	Listen      string `koanf:"listen" help:"host:port of the S3 API" check:"listen"`
	AdminListen string `koanf:"admin_listen" help:"host:port of metrics and health; empty turns them off" check:"listen"`
	// AdminHosts are for a proxy on this machine that passes its own name on.
	AdminHosts    []string `koanf:"admin_hosts" help:"names under which the admin address takes requests: on loopback beside its own names, elsewhere instead of all; IP addresses always are" needs:"admin_listen"`
	AllowInsecure bool     `koanf:"allow_insecure" help:"allow addresses that are not loopback without TLS: requests are signed, but bodies and answers travel in the clear, and the admin paths ask nobody"`
	TLS           TLS      `koanf:"tls"`

	Dir string `koanf:"dir" help:"directory of the data; one process per directory" check:"dir"`
	// Mirrors are on other drives: everything below Dir is there too.
	Mirrors     []string      `koanf:"mirrors" help:"directories on other drives, up to 4, that keep a copy of everything in dir: every write is fsynced on all of them; they must exist"`
	MirrorRate  config.Bytes  `koanf:"mirror_rate" help:"bytes a second at which a drive that comes back, or is new, is compared and copied; 0: no bound" needs:"mirrors"`
	MirrorScrub time.Duration `koanf:"mirror_scrub_interval" help:"time between two comparisons of all copies; 0: never" needs:"mirrors"`

	Region     string `koanf:"region" help:"region that is reported; signatures of any region are taken"`
	OnlyRegion bool   `koanf:"only_region" help:"refuse signatures that were made for another region, as AWS does"`
	Domain     string `koanf:"domain" help:"host <bucket>.<domain> addresses a bucket; empty: path-style only"`

	Users     []User        `koanf:"users" help:"list in the file: name, access_key_id, secret, policy"`
	UsersFile string        `koanf:"users_file" help:"YAML file of further users, which is read again when it changes" check:"file"`
	Buckets   []string      `koanf:"buckets" help:"buckets that are created at start"`
	Places    []Place       `koanf:"places" help:"list in the file: where bodies above inline_object are kept, name and dir, or name, endpoint, bucket, prefix, region, access_key_id, secret, tls, and capacity of either; empty: files below dir"`
	Webhooks  []Webhook     `koanf:"webhooks" help:"list in the file: name, url, bucket, prefix, events, authorization, tls"`
	Quotas    []BucketQuota `koanf:"quotas" help:"list in the file: bucket, bytes, objects; set at start"`

	AckCopies int `koanf:"ack_copies" help:"on how many local places a body is fsynced before a write of it is answered; with fewer places that work, such writes are 503" needs:"places"`
	// Redundancy is what becomes of bodies on the places.
	Redundancy Redundancy `koanf:"redundancy" needs:"places"`

	MaxObject         config.Bytes  `koanf:"max_object" help:"largest body of one PUT"`
	InlineObject      config.Bytes  `koanf:"inline_object" help:"largest body that is kept in the log; larger ones get a file; at most 4MiB"`
	Segment           config.Bytes  `koanf:"segment" help:"length at which a log segment is closed"`
	Reserve           config.Bytes  `koanf:"reserve" help:"disk that is kept for deletes, reclaiming and the index when the disk is full; 0: none"`
	MaxRequests       int           `koanf:"max_requests" help:"requests at the same time; more are answered with SlowDown"`
	MaxConnections    int           `koanf:"max_connections" help:"connections at the same time; a new one takes the place of one without a request, or is answered with SlowDown"`
	MaxInFlight       config.Bytes  `koanf:"max_in_flight" help:"memory for bodies that are being received"`
	BodyIdle          time.Duration `koanf:"body_idle_timeout" help:"how long a client may take for the next piece of a body"`
	Drain             time.Duration `koanf:"drain_timeout" help:"how long requests may take to end at shutdown"`
	ReclaimBelow      float64       `koanf:"reclaim_below" help:"a segment is rewritten when a smaller fraction of it is in use; 0 turns it off"`
	ReclaimInterval   time.Duration `koanf:"reclaim_interval" help:"time between two scans for such segments" needs:"reclaim_below"`
	LifecycleInterval time.Duration `koanf:"lifecycle_interval" help:"time between two passes of the lifecycle rules of buckets over their objects; 0: rules are kept and not carried out"`
	LifecycleRate     int           `koanf:"lifecycle_rate" help:"objects that lifecycle rules delete in a second at most" needs:"lifecycle_interval"`
	AbortUploadsAfter time.Duration `koanf:"abort_uploads_after" help:"age at which a multipart upload that was not completed is aborted; 0: never"`
	EncryptedAtRest   bool          `koanf:"encrypted_at_rest" help:"the file system below dir encrypts: writes that ask for server-side encryption AES256 are served"`
	Encryption        Encryption    `koanf:"encryption"`
	IfMatchAbsent412  bool          `koanf:"if_match_absent_412" help:"answer If-Match on an absent key with 412 instead of 404 as AWS does"`
	BlockPublicAccess bool          `koanf:"block_public_access" help:"no policy and no ACL opens a bucket to anonymous requests, as a public access block of every bucket"`
	WebhookBacklog    config.Bytes  `koanf:"webhook_backlog" help:"log that is kept for a webhook that doesn't answer; older events are dropped and counted" needs:"webhooks"`
	Pprof             bool          `koanf:"pprof" help:"serve /debug/pprof/ on the admin address" needs:"admin_listen"`
}

// DefaultConfig is for one machine. Users and Dir must be given.
func DefaultConfig() Config {
	return Config{
		Listen: "127.0.0.1:4790", AdminListen: "127.0.0.1:4791", Region: "us-east-1",
		AckCopies: 1, Redundancy: defaultRedundancy(),
		MaxObject: 5 << 30, InlineObject: 1 << 20, Segment: 256 << 20, Reserve: 64 << 20,
		MaxRequests: 512, MaxConnections: 4096, MaxInFlight: 64 << 20, BodyIdle: 30 * time.Second, Drain: 15 * time.Second,
		AbortUploadsAfter: 7 * 24 * time.Hour, LifecycleInterval: time.Hour, LifecycleRate: 500,
		Encryption: Encryption{RewriteRate: 32 << 20},
		MirrorRate: 64 << 20, MirrorScrub: 7 * 24 * time.Hour,
		ReclaimBelow: 0.4, ReclaimInterval: time.Minute, WebhookBacklog: 4 << 30,
	}
}

const (
	minSecret  = 8
	minSegment = 64 << 10
	// minReserve has space for a flush of the index.
	minReserve = 16 << 20
)

// Validate checks the settings.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		bad("listen %q: %w", c.Listen, err)
	}
	if c.AbortUploadsAfter < 0 {
		bad("abort_uploads_after %v: must not be negative", c.AbortUploadsAfter)
	}
	if _, _, err := net.SplitHostPort(c.AdminListen); err != nil && c.AdminListen != "" {
		bad("admin_listen %q: %w", c.AdminListen, err)
	}
	if err := c.TLS.validate(); err != nil {
		bad("%w", err)
	}
	if !web.Loopback(c.Listen) && !c.TLS.Enabled() && !c.AllowInsecure {
		bad("listen %q: S3 is served in the clear, which is for loopback, unless tls.cert_file or allow_insecure", c.Listen)
	}
	if c.AdminListen != "" && !web.Loopback(c.AdminListen) && !c.AllowInsecure {
		bad("admin_listen %q: admin paths are served in the clear and ask nobody, which is for loopback, unless allow_insecure", c.AdminListen)
	}
	if c.Pprof && c.AdminListen != "" && !web.Loopback(c.AdminListen) {
		bad("admin_listen %q: pprof is for loopback", c.AdminListen)
	}
	if c.Dir == "" {
		bad("dir: is needed")
	}
	if len(c.Users) == 0 && c.UsersFile == "" {
		bad("users: at least one is needed, or users_file; there are no default credentials")
	}
	errs = append(errs, checkMirrors(c)...)
	errs = append(errs, checkUsers(c.Users)...)
	for _, b := range c.Buckets {
		if !s3api.ValidBucket(b) {
			bad("buckets: %q is no bucket name", b)
		}
	}
	errs = append(errs, checkWebhooks(c.Webhooks)...)
	errs = append(errs, c.Encryption.check()...)
	errs = append(errs, checkPlaces(c)...)
	errs = append(errs, checkQuotas(c.Quotas)...)
	errs = append(errs, checkRedundancy(c)...)
	switch {
	case c.InlineObject <= 0 || c.InlineObject > 4<<20:
		bad("inline_object %s: want 1B to 4MiB", c.InlineObject)
	case c.MaxObject <= 0 || c.MaxObject > 5<<30:
		bad("max_object %s: want 1B to 5GiB", c.MaxObject)
	case c.MaxInFlight < 4<<20:
		bad("max_in_flight %s: want at least 4MiB", c.MaxInFlight)
	case c.Segment < minSegment || c.Segment > 2<<30:
		bad("segment %s: want 64KiB to 2GiB", c.Segment)
	case c.Reserve < 0 || c.Reserve > 0 && c.Reserve < minReserve:
		bad("reserve %s: want 0 or at least 16MiB", c.Reserve)
	case c.MaxRequests < 1:
		bad("max_requests %d: want at least 1", c.MaxRequests)
	case c.MaxConnections < 1:
		bad("max_connections %d: want at least 1", c.MaxConnections)
	case c.BodyIdle <= 0 || c.Drain <= 0 || c.ReclaimInterval <= 0:
		bad("body_idle_timeout, drain_timeout and reclaim_interval must be positive")
	case c.LifecycleInterval < 0 || c.LifecycleInterval > 0 && c.LifecycleRate < 1:
		bad("lifecycle_interval must not be negative, and lifecycle_rate must be at least 1")
	case c.ReclaimBelow < 0 || c.ReclaimBelow >= 1:
		bad("reclaim_below %g: want 0 to less than 1", c.ReclaimBelow)
	}
	return errors.Join(errs...)
}

func checkUsers(users []User) (errs []error) {
	keys, names := map[string]bool{}, map[string]bool{}
	for i, u := range users {
		switch {
		case u.Name == "" || u.AccessKeyID == "" || strings.ContainsAny(u.AccessKeyID, "/, "):
			errs = append(errs, fmt.Errorf("users: user %d needs a name and an access_key_id without slash, comma and space", i))
		case len(u.Secret) < minSecret:
			errs = append(errs, fmt.Errorf("users: the secret of %q has less than %d characters", u.Name, minSecret))
		case keys[u.AccessKeyID] || names[u.Name]:
			errs = append(errs, fmt.Errorf("users: %q is there twice", u.Name))
		}
		keys[u.AccessKeyID], names[u.Name] = true, true
		if u.Policy != "" {
			if _, err := policy.Parse([]byte(u.Policy), ""); err != nil {
				errs = append(errs, fmt.Errorf("users: %q: %w", u.Name, err))
			}
		}
	}
	return errs
}

func checkWebhooks(hooks []Webhook) (errs []error) {
	names := map[string]bool{}
	for _, h := range hooks {
		u, err := url.Parse(h.URL.Reveal())
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			errs = append(errs, fmt.Errorf("webhooks: %q is no http URL", h.URL))
		}
		if err == nil && u.Scheme == "http" && h.TLS != (notify.TLS{}) {
			errs = append(errs, fmt.Errorf("webhooks: %q: tls has no effect without https", h.URL))
		}
		if n := h.id(); names[n] {
			errs = append(errs, fmt.Errorf("webhooks: %q is there twice; give each a name", h.shown()))
		} else {
			names[n] = true
		}
		for _, e := range h.Events {
			if !notify.ValidEvent(e) {
				errs = append(errs, fmt.Errorf("webhooks: event %q is not known", e))
			}
		}
	}
	return errs
}

func (h Webhook) id() string {
	if h.Name != "" {
		return h.Name
	}
	return h.URL.Reveal()
}

// shown is id as it is printed.
func (h Webhook) shown() string {
	if h.Name != "" {
		return h.Name
	}
	return h.URL.String()
}
