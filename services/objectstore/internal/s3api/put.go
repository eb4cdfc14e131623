package s3api

import (
	"errors"
	"net/http"
	"strconv"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// newObject gives the object that a write will make, with its tags, and the write's condition. It
// checks that the caller may write it.
func (c *call) newObject() (engine.Object, engine.Cond, error) {
	o := engine.Object{Bucket: c.bucket, Key: c.key}
	cond, err := writeCondition(c.r.Header)
	if err != nil {
		return o, cond, err
	}
	ctx := writeContext(c.r.Header)
	if err := c.authorize("PutObject", c.bucket, c.key, ctx); err != nil {
		return o, cond, err
	}
	return o, cond, c.describe(&o, ctx)
}

// describe reads the ACL, the tags and the lock of an object that will be made.
func (c *call) describe(o *engine.Object, ctx []policy.Value) (err error) {
	if err := c.checkObjectACL(c.r.Header); err != nil {
		return err
	}
	if t := c.r.Header.Get("X-Amz-Tagging"); t != "" {
		if err := c.authorize("PutObjectTagging", c.bucket, c.key, ctx); err != nil {
			return err
		}
		if o.Tags, err = tagsOfHeader(t); err != nil {
			return err
		}
	}
	return c.readLock(o, ctx)
}

// decidedOnce is the largest body, bytes, whose condition only the engine decides. Reading so small
// a body costs less than deciding twice: most conditions hold, and a lookup of the key is a tenth
// of a small write.
const decidedOnce = firstPiece

// worthAnEarlyCheck reports whether a write's condition should be decided before the body is read.
// A client that waits for 100-continue has not sent the body and should be spared that. A store
// that takes no writes answers a condition that fails all the same.
func (c *call) worthAnEarlyCheck() bool {
	n := c.r.ContentLength
	return n < 0 || n > decidedOnce || c.r.Header.Get("Expect") != "" || !c.Engine.TakesWrites()
}

// checkConditionEarly fails a conditional write before its body is read, when the condition does
// not hold now. The engine decides the condition again, together with the write.
func (c *call) checkConditionEarly(cond engine.Cond) error {
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	if !cond.IsSet() {
		return nil
	}
	return c.unwrapCondition(cond, c.Engine.CheckCond(c.bucket, c.key, cond))
}

func (c *call) putObject() error {
	o, cond, err := c.newObject()
	if err != nil {
		return err
	}
	if _, err := c.Engine.Bucket(c.bucket); err != nil {
		return err
	}
	if c.worthAnEarlyCheck() {
		if err := c.checkConditionEarly(cond); err != nil {
			return err
		}
	}
	if err := readStoredHeaders(c.r.Header, &o); err != nil {
		return err
	}
	d, err := c.readExpectations()
	if err != nil {
		return err
	}
	if c.worthAnEarlyCheck() { // behind the condition, which freeing space would not change
		if err := c.Engine.CheckQuota(c.bucket, c.key, d.decodedLen); err != nil {
			return err
		}
	}
	d.byDefault()
	u, err := c.receive(d)
	if err != nil {
		return err
	}
	defer u.release()
	if o, err = c.store(o, u, cond); err != nil {
		return err
	}
	// Both values are parts of one string: one allocation.
	var room [64]byte
	text := append(append(append(room[:0], '"'), o.ETag...), '"')
	n := len(text)
	both := string(strconv.AppendInt(text, o.Size, 10))
	c.setHeader("ETag", both[:n])
	c.setHeader("X-Amz-Object-Size", both[n:])
	c.setMade(o.Version)
	c.setEncryption(o.Sealed())
	c.setExpiration(&o)
	c.setChecksum(o.Checksum)
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// store commits an upload as an object.
func (c *call) store(o engine.Object, u *upload, cond engine.Cond) (engine.Object, error) {
	o.Size, o.ETag, o.Checksum, o.Modified = u.size, u.etag, u.sum, c.Now()
	if err := c.defaultLock(&o); err != nil {
		return o, err
	}
	if u.blob != nil {
		x, err := u.blob.Finish()
		if err != nil {
			return o, err
		}
		o.Extents = []engine.Extent{x}
	}
	out, err := c.Engine.Put(c.r.Context(), o, u.body, cond)
	if err == nil || errors.Is(err, engine.ErrPoisoned) || errors.Is(err, engine.ErrClosed) {
		// The record names the file, or may name it when the outcome is unknown: it must not be
		// discarded.
		u.blob = nil
	}
	if errors.Is(err, engine.ErrTooLarge) {
		return o, s3err.MetadataTooLarge
	}
	return out, c.unwrapCondition(cond, err)
}

func (c *call) unwrapCondition(cond engine.Cond, err error) error {
	switch {
	case errors.Is(err, engine.ErrPrecondition):
		return c.conditionError(cond, engine.ErrPrecondition)
	case errors.Is(err, engine.ErrNotFound):
		return c.conditionError(cond, engine.ErrNotFound)
	}
	return err
}

// setEncryption says that the object is encrypted at rest, where it is, by this store or, as the operator says, below it.
func (c *call) setEncryption(sealed bool) {
	if sealed || c.EncryptedAtRest {
		c.setHeader(sseHeader, "AES256")
	}
}

func (c *call) setChecksum(s engine.Checksum) {
	if s.Algorithm == "" {
		return
	}
	name, ok := sumHeaders[s.Algorithm]
	if !ok {
		name = http.CanonicalHeaderKey(checksum.Header(s.Algorithm))
	}
	c.setHeader(name, s.Value)
	c.setHeader("X-Amz-Checksum-Type", s.Type)
}

// sumHeaders are the headers of the algorithms, as answers have them. Nearly every answer has one, so they are not made
// each time.
var sumHeaders = func() map[string]string {
	m := make(map[string]string, len(checksum.Algorithms))
	for _, a := range checksum.Algorithms {
		m[a] = http.CanonicalHeaderKey(checksum.Header(a))
	}
	return m
}()
