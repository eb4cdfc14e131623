package s3api

import (
	"context"
	"errors"
	"net/http"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// bucketPolicy gives a bucket's parsed policy.
func (s *Server) bucketPolicy(b engine.Bucket) (*policy.Document, error) {
	if len(b.Policy) == 0 {
		return nil, nil
	}
	// It was valid when it was set: where it is not, the caller denies rather than guesses.
	return s.policies.get(b.Name, b.Policy, func(text []byte) (*policy.Document, error) { return policy.Parse(text, b.Name) })
}

// authorize decides whether the caller may do action on a bucket, or on a key in it. A missing
// bucket has no policy.
func (c *call) authorize(action, bucket, key string, ctx []policy.Value) error {
	return c.authorizeOn(action, bucket, key, "", ctx)
}

// authorizeOn is authorize for a version of the key, which conditions may ask about; an empty one is that of the request, or the
// current.
func (c *call) authorizeOn(action, bucket, key, version string, ctx []policy.Value) error {
	err := c.decide(action, bucket, key, version, ctx)
	if err != nil {
		c.noteDenial(action, bucket, key)
	}
	return err
}

// may is authorize for what decides no request on its own, such as whether a header is shown: a denial is not logged.
func (c *call) may(action, key string) bool { return c.decide(action, c.bucket, key, "", nil) == nil }

func (c *call) decide(action, bucket, key, version string, ctx []policy.Value) error {
	var doc *policy.Document
	b, err := c.Engine.Bucket(bucket)
	if err == nil {
		if doc, err = c.bucketPolicy(b); err != nil {
			c.Log.Error("a bucket's policy cannot be read, everything is denied", "bucket", bucket, "error", err)
			return s3err.AccessDenied
		}
	}
	if doc == nil && c.user.Policy == nil {
		return nil
	}
	req := policy.Request{User: c.user.Name, Action: "s3:" + action, Resource: "arn:aws:s3:::" + bucket, Context: ctx,
		Lookup: func(name string) []string { return c.conditionValues(name, bucket, key, version) }}
	if key != "" {
		req.Resource = "arn:aws:s3:::" + bucket + "/" + key
	}
	c.unreadTag = false
	own, shared := c.user.Policy.Decide(req), doc.Decide(req)
	if c.unreadTag {
		return errUnreadTag
	}
	if c.anonymous && shared == policy.Allow && doc.IsPublic() && c.publicAccess(b).RestrictPublicBuckets {
		shared = policy.Silent
	}
	allowed := own != policy.Deny && shared != policy.Deny
	// A user without a policy of its own may do everything that is not denied.
	if allowed && c.user.Policy != nil && own != policy.Allow && shared != policy.Allow {
		allowed = c.grantedByACL(b, action)
	}
	if !allowed {
		return c.explainDenial(req, own, shared)
	}
	return nil
}

// errUnreadTag answers where a policy asks for the tags of an object whose record cannot be read.
var errUnreadTag = s3err.AccessDenied.With("A policy asks for the tags of the object, which cannot be read.")

// explainDenial says who may not do what, where a policy denies it: whoever has signed knows the names in it. Nobody is told more
// than that it is denied.
func (c *call) explainDenial(req policy.Request, own, shared policy.Decision) error {
	by := ""
	switch {
	case c.anonymous:
	case shared == policy.Deny:
		by = "a resource-based policy"
	case own == policy.Deny:
		by = "an identity-based policy"
	}
	if by == "" {
		return s3err.AccessDenied
	}
	return s3err.AccessDenied.With("User: %s is not authorized to perform: %s on resource: %q with an explicit deny in %s", req.User, req.Action, req.Resource, by)
}

// maxDenials bounds the kinds of denied requests that are remembered.
const maxDenials = 1000

// noteDenial logs the first denied request of a kind, so that a policy that lacks something is seen and
// a client that asks on does not fill the log. Only who is known gets this far.
func (c *call) noteDenial(action, bucket, key string) {
	if c.anonymous {
		return
	}
	family := key
	for i, n := 0, 0; i < len(key); i++ {
		if key[i] == '/' {
			if n++; n == 3 {
				family = key[:i]
				break
			}
		}
	}
	d := denial{c.user.Name, action, bucket, family}
	c.deniedMu.Lock()
	seen := c.denied[d]
	if !seen && len(c.denied) < maxDenials {
		c.denied[d] = true
	}
	seen = seen || !c.denied[d]
	c.deniedMu.Unlock()
	if !seen {
		c.Log.Info("a request was denied; others of its kind are not logged until the next start", "user", d.user, "action", "s3:"+action, "bucket", bucket, "key", key)
	}
}

// denial is a kind of denied requests: the key up to its third slash.
type denial struct{ user, action, bucket, family string }

// writeContext gives the condition keys of a write, for policies.
func writeContext(h http.Header) []policy.Value {
	ctx := make([]policy.Value, 1, 3)
	ctx[0] = policy.Value{Key: "s3:ObjectCreationOperation", Value: "true"}
	if v := h.Get("If-None-Match"); v != "" {
		ctx = append(ctx, policy.Value{Key: "s3:if-none-match", Value: v})
	}
	if v := h.Get("If-Match"); v != "" {
		ctx = append(ctx, policy.Value{Key: "s3:if-match", Value: v})
	}
	if v := h.Get("X-Amz-Copy-Source"); v != "" {
		ctx = append(ctx, policy.Value{Key: "s3:x-amz-copy-source", Value: v})
	}
	return ctx
}

func (c *call) getPolicy() error {
	if err := c.authorize("GetBucketPolicy", c.bucket, "", nil); err != nil {
		return err
	}
	if c.anonymous {
		return notAllowed(c.r.Method)
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	if b.Policy == nil {
		return s3err.NoSuchBucketPolicy
	}
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(b.Policy) // the client went away: nothing to do
	return nil
}

func (c *call) putPolicy() error {
	if err := c.authorize("PutBucketPolicy", c.bucket, "", nil); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	// Who is nobody must not decide who may do what, whatever a policy allows.
	if c.anonymous {
		return notAllowed(c.r.Method)
	}
	body, err := c.readAll(maxPolicyBytes)
	if err != nil {
		return err
	}
	doc, err := policy.ParseNew(body, c.bucket, c.isUser)
	if err != nil {
		var bad *policy.Error
		if !errors.As(err, &bad) {
			return err
		}
		return s3err.MalformedPolicy.With("%s", bad.Message).Detail("Detail", bad.Detail)
	}
	if err := c.checkPublicPolicy(b, doc); err != nil {
		return err
	}
	return c.setPolicy(body)
}

const maxPolicyBytes = 20 << 10

func (c *call) deletePolicy() error {
	if err := c.authorize("DeleteBucketPolicy", c.bucket, "", nil); err != nil {
		return err
	}
	if c.anonymous {
		return notAllowed(c.r.Method)
	}
	return c.setPolicy(nil)
}

func (c *call) setPolicy(text []byte) error {
	if err := c.Engine.SetPolicy(context.WithoutCancel(c.r.Context()), c.bucket, text); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// authorizeBucket checks that the caller may do action on the request's bucket, and that the bucket
// exists. The order keeps the existence from callers who may not know it.
func (c *call) authorizeBucket(action string) error {
	if err := c.authorize(action, c.bucket, "", nil); err != nil {
		return err
	}
	_, err := c.Engine.Bucket(c.bucket)
	if errors.Is(err, engine.ErrNoBucket) {
		return s3err.NoSuchBucket
	}
	return err
}
