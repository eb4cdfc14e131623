package s3api

import (
	"context"
	"encoding/xml"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

// Headers of object lock.
const (
	lockModeHeader   = "X-Amz-Object-Lock-Mode"
	lockUntilHeader  = "X-Amz-Object-Lock-Retain-Until-Date"
	lockHoldHeader   = "X-Amz-Object-Lock-Legal-Hold"
	bucketLockHeader = "X-Amz-Bucket-Object-Lock-Enabled"
	bypassHeader     = "X-Amz-Bypass-Governance-Retention"
)

// maxDefaultDays and maxDefaultYears are AWS's limits of a default retention.
const (
	maxDefaultDays  = 36500
	maxDefaultYears = 100
)

// lockConfiguration is the body of PutObjectLockConfiguration. It is kept with the bucket as XML, under
// engine.SettingLock, and object lock is on where it is there.
type lockConfiguration struct {
	XMLName           xml.Name  `xml:"ObjectLockConfiguration"`
	ObjectLockEnabled string    `xml:"ObjectLockEnabled"`
	Rule              *lockRule `xml:"Rule"`
	Other             []element `xml:",any"` // a misspelt one would protect nothing
}

type lockRule struct {
	DefaultRetention *defaultRetention
	Other            []element `xml:",any"`
}

// defaultRetention is what new objects get that ask for no retention of their own.
type defaultRetention struct {
	Mode  string
	Days  *int64 `xml:",omitempty"`
	Years *int64 `xml:",omitempty"`

	Other []element `xml:",any"`
}

// check applies AWS's rules to a configuration.
func (l *lockConfiguration) check() error {
	if l.ObjectLockEnabled != "Enabled" || len(l.Other) > 0 || l.Rule != nil && (l.Rule.DefaultRetention == nil || len(l.Rule.Other)+len(l.Rule.DefaultRetention.Other) > 0) {
		return s3err.MalformedXML
	}
	if l.Rule == nil {
		return nil
	}
	d := l.Rule.DefaultRetention
	if d.Mode != engine.Governance && d.Mode != engine.Compliance || (d.Days == nil) == (d.Years == nil) {
		return s3err.MalformedXML
	}
	name, n, most := "Days", d.Days, int64(maxDefaultDays)
	if d.Years != nil {
		name, n, most = "Years", d.Years, maxDefaultYears
	}
	switch {
	case *n < 1:
		return s3err.Argument(name, strconv.FormatInt(*n, 10), "Default retention period must be a positive integer value.")
	case *n > most:
		return s3err.Argument(name, strconv.FormatInt(*n, 10), "Default retention period too large.")
	}
	return nil
}

// lockOf gives the configuration of a bucket; nil where object lock is off.
func lockOf(b engine.Bucket) (*lockConfiguration, error) {
	text := b.Settings[engine.SettingLock]
	if text == nil {
		return nil, nil
	}
	var l lockConfiguration
	if err := xml.Unmarshal(text, &l); err != nil {
		return nil, err // it was valid when it was set
	}
	return &l, nil
}

func (c *call) getLockConfiguration() error {
	if err := c.authorizeBucket("GetBucketObjectLockConfiguration"); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	l, err := lockOf(b)
	if err != nil {
		return err
	}
	if l == nil {
		return s3err.ObjectLockNotFound
	}
	l.XMLName = xml.Name{Space: xmlns, Local: "ObjectLockConfiguration"}
	return c.writeXML(l)
}

func (c *call) putLockConfiguration() error {
	if err := c.authorizeBucket("PutBucketObjectLockConfiguration"); err != nil {
		return err
	}
	body, err := c.readAll(maxSettingBytes)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return s3err.MissingRequestBody
	}
	var l lockConfiguration
	if s3xml.Decode(body, &l) != nil {
		return s3err.MalformedXML
	}
	if err := l.check(); err != nil {
		return err
	}
	text, err := l.encode()
	if err != nil {
		return err
	}
	if err := c.Engine.SetLockConfiguration(context.WithoutCancel(c.r.Context()), c.bucket, text); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// encode gives the text that is kept with a bucket.
func (l *lockConfiguration) encode() ([]byte, error) {
	l.XMLName = xml.Name{Local: "ObjectLockConfiguration"}
	return xml.Marshal(l)
}

// newBucketLock reads whether a new bucket gets object lock, and gives its configuration; nil for none.
func (c *call) newBucketLock() ([]byte, error) {
	switch v := c.r.Header.Get(bucketLockHeader); {
	case v == "", strings.EqualFold(v, "false"):
		return nil, nil
	case !strings.EqualFold(v, "true"):
		return nil, s3err.Argument("x-amz-bucket-object-lock-enabled", v, "The value must be true or false.")
	}
	for _, action := range [...]string{"PutBucketObjectLockConfiguration", "PutBucketVersioning"} {
		if err := c.authorize(action, c.bucket, "", nil); err != nil {
			return nil, err
		}
	}
	l := lockConfiguration{ObjectLockEnabled: "Enabled"}
	return l.encode()
}

// lockAsked is the lock that the headers of a request ask for.
func (c *call) lockAsked() (engine.Lock, error) {
	h := c.r.Header
	l := engine.Lock{Mode: h.Get(lockModeHeader), Hold: h.Get(lockHoldHeader)}
	until := h.Get(lockUntilHeader)
	switch {
	case l.Mode != "" && until == "":
		return l, s3err.Argument("x-amz-object-lock-retain-until-date", "", "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied.")
	case l.Mode == "" && until != "":
		return l, s3err.Argument("x-amz-object-lock-mode", "", "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied.")
	case l.Hold != "" && l.Hold != engine.HoldOn && l.Hold != engine.HoldOff:
		return l, s3err.Argument("x-amz-object-lock-legal-hold", l.Hold, "Legal Hold must be either of 'ON' or 'OFF'")
	case l.Mode != "" && l.Mode != engine.Governance && l.Mode != engine.Compliance:
		return l, s3err.Argument("x-amz-object-lock-mode", l.Mode, "Unknown wormMode directive.")
	case until == "":
		return l, nil
	}
	var err error
	l.Until, err = c.retainUntil(until)
	return l, err
}

// retainUntil reads the end of a retention, which must be in the future.
func (c *call) retainUntil(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.UTC().Year() > 9999 {
		return t, s3err.Argument("x-amz-object-lock-retain-until-date", text, "The retain until date must be provided in ISO 8601 format")
	}
	if !t.After(c.Now()) {
		return t, s3err.Argument("x-amz-object-lock-retain-until-date", text, "The retain until date must be in the future!")
	}
	return t.UTC().Truncate(time.Millisecond), nil
}

// readLock gives an object that will be made the lock that its request asks for. The default retention of the bucket
// comes when the object is made; see defaultLock.
func (c *call) readLock(o *engine.Object, ctx []policy.Value) error {
	h := c.r.Header
	if len(h[lockModeHeader])+len(h[lockUntilHeader])+len(h[lockHoldHeader]) == 0 {
		return nil
	}
	l, err := c.lockAsked()
	if err != nil {
		return err
	}
	if l.Mode != "" {
		if err := c.authorize("PutObjectRetention", c.bucket, c.key, ctx); err != nil {
			return err
		}
	}
	if l.Hold != "" {
		if err := c.authorize("PutObjectLegalHold", c.bucket, c.key, ctx); err != nil {
			return err
		}
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	if b.Settings[engine.SettingLock] == nil {
		return s3err.InvalidRequest.With("Bucket is missing ObjectLockConfiguration")
	}
	o.Lock = l
	return nil
}

// defaultLock gives an object that is about to be made the default retention of its bucket, unless it has its own.
func (c *call) defaultLock(o *engine.Object) error {
	if o.Lock.Mode != "" {
		return nil
	}
	b, err := c.Engine.Bucket(o.Bucket)
	if err != nil || b.Settings[engine.SettingLock] == nil {
		return err
	}
	l, err := lockOf(b)
	if err != nil || l.Rule == nil {
		return err
	}
	d, now := l.Rule.DefaultRetention, c.Now().UTC().Truncate(time.Millisecond)
	o.Lock.Mode = d.Mode
	if d.Years != nil {
		o.Lock.Until = now.AddDate(int(*d.Years), 0, 0)
	} else {
		o.Lock.Until = now.AddDate(0, 0, int(*d.Days))
	}
	return nil
}

// bypasses reports whether a governance retention of a key does not bind the caller: it says so, and it may. Who may
// not is not refused, since clients say so for objects without a retention, too.
func (c *call) bypasses(key string) bool {
	return strings.EqualFold(c.r.Header.Get(bypassHeader), "true") && c.may("BypassGovernanceRetention", key)
}

// setLockHeaders shows the lock of an object to who may know it.
func (c *call) setLockHeaders(l engine.Lock) {
	if l.Mode != "" && c.may("GetObjectRetention", c.key) {
		c.setHeader(lockModeHeader, l.Mode)
		c.setHeader(lockUntilHeader, stamp(l.Until))
	}
	if l.Hold != "" && c.may("GetObjectLegalHold", c.key) {
		c.setHeader(lockHoldHeader, l.Hold)
	}
}

type retentionXML struct {
	XMLName         xml.Name `xml:"Retention"`
	Mode            string   `xml:",omitempty"`
	RetainUntilDate string   `xml:",omitempty"`

	Other []element `xml:",any"` // a misspelt retention would be none, and take the one that is there back
}

type legalHoldXML struct {
	XMLName xml.Name `xml:"LegalHold"`
	Status  string
}

// lockVersion is version, where an empty one is none: SDKs send such a parameter for a version that is not set.
func (c *call) lockVersion() (string, error) {
	if c.query.get("versionId") == "" {
		return "", nil
	}
	return c.version()
}

// lockedObject gives the version of a request that asks for its lock.
func (c *call) lockedObject(action string) (engine.Object, error) {
	version, err := c.lockVersion()
	if err != nil {
		return engine.Object{}, err
	}
	if err := c.authorize(action, c.bucket, c.key, nil); err != nil {
		return engine.Object{}, err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return engine.Object{}, err
	}
	o, err := c.Engine.StatVersion(c.bucket, c.key, version)
	if err != nil {
		return o, c.absent(version, err)
	}
	c.setVersion(c.bucket, versionHeader, o.Version)
	return o, lockIsOn(b)
}

func lockIsOn(b engine.Bucket) error {
	if b.Settings[engine.SettingLock] == nil {
		return s3err.InvalidRequest.With("Bucket is missing Object Lock Configuration")
	}
	return nil
}

func (c *call) getRetention() error {
	o, err := c.lockedObject("GetObjectRetention")
	if err != nil {
		return err
	}
	if o.Lock.Mode == "" {
		return s3err.NoSuchObjectLock
	}
	return c.writeXML(retentionXML{XMLName: xml.Name{Space: xmlns, Local: "Retention"}, Mode: o.Lock.Mode, RetainUntilDate: stamp(o.Lock.Until)})
}

func (c *call) getLegalHold() error {
	o, err := c.lockedObject("GetObjectLegalHold")
	if err != nil {
		return err
	}
	if o.Lock.Hold == "" {
		return s3err.NoSuchObjectLock
	}
	return c.writeXML(legalHoldXML{xml.Name{Space: xmlns, Local: "LegalHold"}, o.Lock.Hold})
}

// readLockBody reads the body of a change of a lock into v, and authorizes it; policies may ask for what is in the body.
func (c *call) readLockBody(action string, v any, use func()) error {
	body, err := c.readAll(maxSettingBytes)
	if err == nil && s3xml.Decode(body, v) != nil {
		err = s3err.MalformedXML
	}
	if err == nil {
		use()
	}
	if denied := c.authorize(action, c.bucket, c.key, nil); denied != nil {
		return denied
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	return err
}

// lockValue gives the value of a policy's condition key for the lock that a request asks for.
func (c *call) lockValue(key string) string {
	asked := c.wanted
	h := c.r.Header
	if asked == (lockTexts{}) {
		asked = lockTexts{h.Get(lockModeHeader), h.Get(lockUntilHeader), h.Get(lockHoldHeader)}
	}
	switch key {
	case "s3:object-lock-mode":
		return asked.mode
	case "s3:object-lock-legal-hold":
		return asked.hold
	case "s3:object-lock-retain-until-date":
		return asked.until
	}
	t, err := time.Parse(time.RFC3339, asked.until)
	if err != nil {
		return ""
	}
	// In milliseconds: a time.Duration ends after 292 years.
	const day = 24 * 60 * 60 * 1000
	return strconv.FormatInt((t.UnixMilli()-c.Now().UnixMilli()+day-1)/day, 10)
}

// lockTexts is a lock as a request asks for it.
type lockTexts struct{ mode, until, hold string }

// putRetention serves PutObjectRetention. A body with neither mode nor date removes the retention.
func (c *call) putRetention() error {
	var in retentionXML
	err := c.readLockBody("PutObjectRetention", &in, func() { c.wanted = lockTexts{mode: in.Mode, until: in.RetainUntilDate} })
	if err != nil {
		return err
	}
	var until time.Time
	switch {
	case len(in.Other) > 0:
		return s3err.MalformedXML
	case in.Mode == "" && in.RetainUntilDate == "":
	case in.Mode != engine.Governance && in.Mode != engine.Compliance, in.RetainUntilDate == "":
		return s3err.MalformedXML
	default:
		if until, err = c.retainUntil(in.RetainUntilDate); err != nil {
			return err
		}
	}
	bypass := c.bypasses(c.key)
	return c.changeLock(func(l engine.Lock, now time.Time) (engine.Lock, error) {
		return l.Retain(in.Mode, until, now, bypass)
	})
}

func (c *call) putLegalHold() error {
	var in legalHoldXML
	err := c.readLockBody("PutObjectLegalHold", &in, func() { c.wanted = lockTexts{hold: in.Status} })
	if err != nil {
		return err
	}
	if in.Status != engine.HoldOn && in.Status != engine.HoldOff {
		return s3err.MalformedXML
	}
	return c.changeLock(func(l engine.Lock, _ time.Time) (engine.Lock, error) {
		l.Hold = in.Status
		return l, nil
	})
}

// changeLock changes the lock of the version that the request names.
func (c *call) changeLock(change func(engine.Lock, time.Time) (engine.Lock, error)) error {
	version, err := c.lockVersion()
	if err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err == nil {
		err = lockIsOn(b)
	}
	if err != nil {
		return err
	}
	id, err := c.Engine.SetLock(context.WithoutCancel(c.r.Context()), c.bucket, c.key, version, change)
	if err != nil {
		return c.absent(version, err)
	}
	c.setVersion(c.bucket, versionHeader, id)
	c.w.WriteHeader(http.StatusOK)
	return nil
}
