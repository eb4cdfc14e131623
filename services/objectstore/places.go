package objectstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/notify"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/redundancy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3api"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// Place is where large bodies are kept: a directory, or a bucket of another S3 store.
type Place struct {
	// Name is written to the place. It must not change while the place has files.
	Name string `koanf:"name"`
	// Dir is a directory on a drive of its own, which must be there.
	Dir string `koanf:"dir" check:"dir"`
	// Capacity bounds what the store keeps on the place; 0: no bound but the drive's.
	Capacity config.Bytes `koanf:"capacity"`

	// Endpoint is the URL of another store that serves conditional writes.
	Endpoint string `koanf:"endpoint"`
	Bucket   string `koanf:"bucket"`
	// Prefix begins the keys, with a slash at its end.
	Prefix      string        `koanf:"prefix"`
	Region      string        `koanf:"region"`
	AccessKeyID string        `koanf:"access_key_id"`
	Secret      config.Secret `koanf:"secret"`
	// SecretFile fills Secret when settings are loaded.
	SecretFile string `koanf:"secret_file"`
	// TLS of an https endpoint.
	TLS notify.TLS `koanf:"tls"`
}

func (p Place) local() bool { return p.Dir != "" }

var placeName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// maxPlaces bounds the list: every place may be asked for a body.
const maxPlaces = 256

func checkPlaces(c Config) (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("places: "+format, args...)) }
	local, names, where := 0, map[string]bool{}, map[string]string{whereIs(c.Dir): "dir"}
	for i, p := range c.Places {
		at := strings.TrimSuffix(p.Endpoint, "/") + "/" + p.Bucket + "/" + p.Prefix
		if p.local() {
			local++
			at = whereIs(p.Dir)
		}
		switch {
		case !placeName.MatchString(p.Name):
			bad("place %d needs a name of lower-case letters, digits and dashes, not %q", i, p.Name)
		case p.Name == redundancy.OldPlace:
			bad("%q is the name of what was there before places", p.Name)
		case names[p.Name]:
			bad("%q is there twice", p.Name)
		case where[at] != "":
			bad("%q is at the same place as %s", p.Name, where[at])
		}
		names[p.Name], where[at] = true, p.Name
		if err := p.check(); err != nil {
			bad("%q: %w", p.Name, err)
		}
	}
	switch {
	case len(c.Places) > maxPlaces:
		bad("%d are too many: at most %d", len(c.Places), maxPlaces)
	case len(c.Places) > 0 && (c.AckCopies < 1 || c.AckCopies > local):
		errs = append(errs, fmt.Errorf("ack_copies %d: there are %d local places, and at least 1 copy is needed", c.AckCopies, local))
	}
	return errs
}

// whereIs names a directory the same however it is written.
func whereIs(dir string) string {
	if real, err := resolved(dir); err == nil {
		return real
	}
	return filepath.Clean(dir)
}

func (p Place) check() error {
	if p.Capacity < 0 {
		return fmt.Errorf("capacity %s must not be negative", p.Capacity)
	}
	if p.local() {
		if p.Endpoint != "" || p.Bucket != "" || p.Prefix != "" || p.Region != "" || p.AccessKeyID != "" || p.Secret != "" || p.TLS != (notify.TLS{}) {
			return errors.New("it has a dir, and settings of a bucket")
		}
		return nil
	}
	if p.Endpoint == "" {
		return errors.New("it needs a dir, or an endpoint and a bucket")
	}
	if !s3api.ValidBucket(p.Bucket) || p.AccessKeyID == "" || p.Secret == "" {
		return errors.New("a bucket needs its name, access_key_id and secret")
	}
	if u, err := url.Parse(p.Endpoint); err == nil && u.Scheme == "http" && p.TLS != (notify.TLS{}) {
		return errors.New("tls has no effect without https")
	}
	_, err := place.OpenBucket(p.Name, p.options())
	return err
}

func (p Place) options() place.BucketOptions {
	return place.BucketOptions{Endpoint: p.Endpoint, Bucket: p.Bucket, Prefix: p.Prefix, Region: p.Region, AccessKey: p.AccessKeyID, SecretKey: p.Secret.Reveal()}
}

// slot says how the place is reached.
func (p Place) slot(synced func()) spread.Slot {
	return spread.Slot{Name: p.Name, Local: p.local(), Capacity: int64(p.Capacity), Open: func(context.Context) (place.Place, error) {
		if !p.local() {
			opt := p.options()
			if p.TLS != (notify.TLS{}) {
				opt.Client = notify.Client(p.TLS)
			}
			return place.OpenBucket(p.Name, opt)
		}
		dir := vfs.Dir(p.Dir)
		if st, err := dir.Stat("."); err != nil || !st.Type.IsDir() {
			// Not made here: the directory of a drive that is not mounted would fill the drive below it.
			return nil, fmt.Errorf("%w: place %s: %s is not a directory: %w", place.ErrOut, p.Name, p.Dir, err)
		}
		return place.OpenDirectory(p.Name, dir, synced)
	}}
}

// errPlacesNeeded: the directory was used with places, and the settings have none.
var errPlacesNeeded = errors.New("large bodies of this store are on places, which the settings do not name")

// openPlaces gives the store of large bodies; nil without places, for the files below dir, which is the file system of the
// store: nil is that of the directory. Places that are poisoned are not opened. k is told what happens in it; nil: nobody is.
func (c Config) openPlaces(ctx context.Context, dir vfs.FS, log *slog.Logger, synced func(), readOnly bool, k *keeping, poisoned map[string]error) (*spread.Store, error) {
	if dir == nil {
		dir = vfs.Dir(c.Dir)
	}
	if len(c.Places) == 0 {
		there, err := spread.HasMembers(dir)
		if err == nil && there {
			err = errPlacesNeeded
		}
		return nil, err
	}
	opt := spread.Options{FS: dir, AckCopies: c.AckCopies, Old: body.NewFiles(dir, synced), Log: log, ReadOnly: readOnly}
	if k != nil {
		k.old = opt.Old
		opt.Hooks = redundancy.Hooks(k.get)
		opt.Hooks.Offered = k.offered
	}
	for _, p := range c.Places {
		slot := p.slot(synced)
		if err := poisoned[p.Name]; err != nil {
			slot.Open = func(context.Context) (place.Place, error) { return nil, err }
		}
		opt.Slots = append(opt.Slots, slot)
	}
	return spread.Open(ctx, opt)
}
