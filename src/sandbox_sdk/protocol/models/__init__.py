"""What travels over the wire: requests and answers, frozen and checked."""

from sandbox_sdk.protocol.models.base import *  # noqa: F403
from sandbox_sdk.protocol.models.checkpoints import *  # noqa: F403
from sandbox_sdk.protocol.models.code import *  # noqa: F403
from sandbox_sdk.protocol.models.commands import *  # noqa: F403
from sandbox_sdk.protocol.models.connections import *  # noqa: F403
from sandbox_sdk.protocol.models.files import *  # noqa: F403
from sandbox_sdk.protocol.models.happenings import *  # noqa: F403
from sandbox_sdk.protocol.models.limits import *  # noqa: F403
from sandbox_sdk.protocol.models.platform import *  # noqa: F403
from sandbox_sdk.protocol.models.registry import *  # noqa: F403
from sandbox_sdk.protocol.models.session_list import *  # noqa: F403
from sandbox_sdk.protocol.models.sessions import *  # noqa: F403
from sandbox_sdk.protocol.models.stored import *  # noqa: F403
from sandbox_sdk.protocol.models.usage import *  # noqa: F403
from sandbox_sdk.protocol.models.volumes import *  # noqa: F403
